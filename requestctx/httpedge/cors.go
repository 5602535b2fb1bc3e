package httpedge

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/rs/cors"
)

// CORSConfig says which pages of other origins may call. The zero CORSConfig is refused, because it lets nobody in.
type CORSConfig struct {
	// Origins are those that may: scheme, host and, where it is not the scheme's own, port, such as "https://shop.example.com".
	// "*" is every origin; it does not go with Credentials. There are no patterns, because a name that matches one may be
	// anybody's.
	Origins []string
	// Credentials lets the browser send cookies and its own authentication along.
	Credentials bool
	// Headers are request headers that scripts may set besides Content-Type, Authorization and Idempotency-Key.
	Headers []string
	// MaxAge is how long a browser may remember the answer to its question, in whole seconds. Zero means 10 minutes, a negative value
	// not at all.
	MaxAge time.Duration
}

// DefaultCORSMaxAge is how long a browser may remember what it may do: 10 minutes.
const DefaultCORSMaxAge = 10 * time.Minute

// CORS makes a middleware that lets scripts of other origins send a key and read what became of it: Idempotency-Key may be set,
// and the headers of rule http-2, Retry-After, Location and Link may be read. Put it round the router, so that it answers a
// browser's preflight (OPTIONS) for routes that have a method in their pattern. It is no protection of the server: a request
// that no browser sends is not stopped by it. The error joins what is wrong with the configuration.
func CORS(cfg CORSConfig) (func(http.Handler) http.Handler, error) {
	var problems []error
	if len(cfg.Origins) == 0 {
		problems = append(problems, errors.New("httpedge: CORSConfig.Origins is empty, so nobody could call; name the origins of the pages"))
	}
	for _, origin := range cfg.Origins {
		u, err := url.Parse(origin)
		switch {
		case origin == "*" && cfg.Credentials:
			problems = append(problems, errors.New("httpedge: CORSConfig lets every origin call with credentials, so any page could act as its visitor; name the origins"))
		case origin == "*":
		case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", strings.ContainsAny(origin, "*@"), origin != u.Scheme+"://"+u.Host,
			strings.HasSuffix(origin, ":"), u.Scheme == "http" && u.Port() == "80", u.Scheme == "https" && u.Port() == "443", // no browser writes these
			strings.ContainsFunc(origin, func(r rune) bool { return r > unicode.MaxASCII }): // nor this: it sends the form "xn--"
			problems = append(problems, fmt.Errorf("httpedge: CORSConfig.Origins: %q is no origin as browsers write it; give scheme and host, without a path and "+
				"without the scheme's own port, such as \"https://shop.example.com\"", origin))
		}
	}
	for _, name := range cfg.Headers {
		if name == "" || name == "*" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }) {
			problems = append(problems, fmt.Errorf("httpedge: CORSConfig.Headers: %q is no name of a header; name each of them", name))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if cfg.MaxAge == 0 {
		cfg.MaxAge = DefaultCORSMaxAge
	}
	age := int(cfg.MaxAge / time.Second)
	if cfg.MaxAge < time.Second {
		age = -1 // in the library's terms: 0 is the browser's own
	}
	return cors.New(cors.Options{
		AllowedOrigins:   cfg.Origins,
		AllowCredentials: cfg.Credentials,
		AllowedMethods:   []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete},
		AllowedHeaders:   append([]string{"Content-Type", "Authorization", keyHeader}, cfg.Headers...),
		ExposedHeaders:   []string{requestIDHeader, keyHeader, replayedHeader, originalHeader, "Retry-After", "Location", "Link"},
		MaxAge:           age,
	}).Handler, nil
}
