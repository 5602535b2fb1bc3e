package httpedge

import (
	"net/http"
	"net/url"
	"strings"
)

// route is a pattern as the application gave it, in the notation of net/http, chi or echo.
type route struct {
	method   string // "" for none
	pattern  string // without the method
	segments []segment
}

// segment is what stands between two slashes of a pattern.
type segment struct {
	text     string // unescaped, when it is fixed
	variable bool   // it holds a parameter, alone or between fixed characters
	rest     bool   // it stands for all that follows
	name     string // of the parameter, when it stands alone
}

func parseRoute(pattern string) route {
	rt := route{pattern: strings.TrimSpace(pattern)}
	if method, rest, ok := strings.Cut(rt.pattern, " "); ok && !strings.Contains(method, "/") {
		rt.method, rt.pattern = method, strings.TrimSpace(rest)
	}
	slash := strings.IndexByte(rt.pattern, '/') // what stands before it is a host
	if slash < 0 {
		return rt
	}
	parts := split(rt.pattern[slash+1:])
	for i, part := range parts {
		s := segment{text: unescape(part)}
		last := i == len(parts)-1
		switch {
		case part == "{$}" && last:
			s.text = "" // the path ends here, with a slash
		case part == "" && last:
			s.variable, s.rest = true, true
		case strings.ContainsAny(part, "{*:"):
			s.variable = true
			s.rest = last && (strings.Contains(part, "*") || strings.HasSuffix(part, "...}"))
			s.name = nameOf(part)
		}
		rt.segments = append(rt.segments, s)
	}
	return rt
}

// split splits at the slashes that are not within braces, where chi allows them in a regular expression.
func split(path string) []string {
	var parts []string
	depth, start := 0, 0
	for i := range len(path) {
		switch path[i] {
		case '{':
			depth++
		case '}':
			depth--
		case '/':
			if depth <= 0 {
				parts = append(parts, path[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, path[start:])
}

// nameOf gives the name of a parameter that is a whole segment.
func nameOf(part string) string {
	switch {
	case part == "*":
		return part
	case part[0] == ':':
		return part[1:]
	case part[0] == '{' && part[len(part)-1] == '}':
		name, _, _ := strings.Cut(part[1:len(part)-1], ":")
		if name = strings.TrimSuffix(name, "..."); !strings.ContainsAny(name, "{}") {
			return name
		}
	}
	return ""
}

// parameter is the last segment that is a parameter as a whole, or -1.
func (rt route) parameter() int {
	for i := len(rt.segments) - 1; i >= 0; i-- {
		if s := rt.segments[i]; s.name != "" && !s.rest {
			return i
		}
	}
	return -1
}

// operationsAt gives what stands before and behind the id in the path of an operation. ok is false for a pattern that is no path
// with one parameter.
func operationsAt(pattern string) (at [2]string, ok bool) {
	rt := parseRoute(pattern)
	id := rt.parameter()
	if id < 0 || rt.method != "" && rt.method != http.MethodGet || rt.pattern[0] != '/' || strings.HasPrefix(rt.pattern, "//") {
		return at, false
	}
	side := 0
	for i, s := range rt.segments {
		at[side] += "/"
		switch {
		case i == id:
			side = 1
		case s.variable:
			return at, false
		default:
			at[side] += url.PathEscape(s.text)
		}
	}
	return at, true
}

// source is the part of a key's scope that the route makes up: the request's method and the pattern.
func (rt route) source(method string) string {
	if rt.pattern == "" {
		return method
	}
	return method + " " + rt.pattern
}

// resource is what the path has in place of the pattern's parameters, or the whole path where it is not written as the
// pattern's fixed parts are. values are what match gave.
func (rt route) resource(u *url.URL, values []string) []string {
	if values == nil {
		return []string{u.EscapedPath()}
	}
	var concrete []string
	for i, s := range rt.segments {
		if s.variable {
			concrete = append(concrete, values[i])
		}
	}
	return concrete
}

// setPathValues sets the path values that the pattern names and the router did not set. r must be the handler's own.
func (rt route) setPathValues(r *http.Request, values []string) {
	for i := range values {
		if name := rt.segments[i].name; name != "" && r.PathValue(name) == "" {
			r.SetPathValue(name, values[i])
		}
	}
}

// match gives what stands in the path for each segment, or nil where the path is another one.
func (rt route) match(u *url.URL) []string {
	path, found := strings.CutPrefix(u.EscapedPath(), "/")
	if !found || len(rt.segments) == 0 {
		return nil
	}
	var values []string
	parts := strings.Split(path, "/")
	for i, s := range rt.segments {
		switch {
		case len(parts) <= i:
			return nil
		case s.rest:
			return append(values, unescape(strings.Join(parts[i:], "/")))
		case !s.variable && unescape(parts[i]) != s.text:
			return nil
		}
		values = append(values, unescape(parts[i]))
	}
	if len(parts) > len(rt.segments) {
		return nil
	}
	return values
}

func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}
