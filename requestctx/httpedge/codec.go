package httpedge

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// Codec is a format in which bodies are read and written. [JSON] and [XML] are ready; an application may bring others. Its
// functions are called from many goroutines at once.
//
// What the fingerprint is made of is the command that Decode gives, so two formats agree on a key's payload where they decode
// to the same command (rule rec-9).
type Codec struct {
	// MediaType is how the format is called, in Content-Type and Accept, and what answers are sent as: "application/json".
	MediaType string
	// Also are other names for it: whole types, such as "text/xml", and endings, such as "+json".
	Also []string
	// ProblemType is what problem details are sent as. Empty means MediaType.
	ProblemType string
	// Decode reads a command strictly: what it does not know must be an error, or a caller believes that it counted. Its error
	// is answered with 400 and the code MALFORMED_REQUEST; the error's text is not shown.
	Decode func(data []byte, v any) error
	// Encode writes what an answer says.
	Encode func(v any) ([]byte, error)
	// EncodeProblem writes problem details. Nil means Encode.
	EncodeProblem func(Problem) ([]byte, error)
	// Check reports, when a route is made, why a type cannot be read. Nil means that all can.
	Check func(reflect.Type) error
}

// JSON is the format of an edge whose configuration names none: UTF-8, strict about unknown, repeated and differently
// spelled members, about numbers and about characters.
func JSON() Codec {
	return Codec{
		MediaType: "application/json", Also: []string{"+json"}, ProblemType: "application/problem+json",
		Decode: func(data []byte, v any) error { return strictjson.Decode(data, v) },
		Encode: func(v any) ([]byte, error) {
			data, err := json.Marshal(v)
			return append(data, '\n'), err
		},
		Check: strictjson.Check,
	}
}

// XML is the other ready format: another writing of the same JSON, for clients that speak XML. A body becomes the JSON that it
// stands for and is read as that, so both formats of a command have one fingerprint (rule rec-9) and the same faults the same
// answer.
//
// Elements are named as the JSON members are, by the tag json, in any order. A list is an element that holds one element for each
// item, named by the tag xml of the list's field, such as xml:"line", or "item"; a map holds <entry key="…"> elements. Numbers
// and truth values may have white space around them. There is no null: an element that is not there is absent. The root element
// is "request", and "response" in answers; a type with the method XMLRoot() string has its own. All elements are in the root's
// namespace, whichever that is; attributes, document types, entities and processing instructions are refused. Problem details
// come as RFC 9457 has them in XML. A character that XML cannot carry is replaced by U+FFFD in an answer.
//
// Types that read themselves from JSON and not from text, interfaces and [json.RawMessage] have no XML form: a command that holds
// one is refused when its route is made.
func XML() Codec {
	return Codec{
		MediaType: "application/xml", Also: []string{"text/xml", "+xml"}, ProblemType: "application/problem+xml",
		Decode:        func(data []byte, v any) error { return strictjson.DecodeXML(data, rootOf(v, "request"), v) },
		Encode:        func(v any) ([]byte, error) { return strictjson.EncodeXML(rootOf(v, "response"), "", v) },
		EncodeProblem: func(p Problem) ([]byte, error) { return strictjson.EncodeXML("problem", "urn:ietf:rfc:7807", p) },
		Check:         strictjson.CheckXML,
	}
}

// rootOf is the name of the root element of a value's document.
func rootOf(v any, other string) string {
	if r, ok := v.(interface{ XMLRoot() string }); ok {
		return r.XMLRoot()
	}
	return other
}

// problem reports what is wrong with the codec.
func (c Codec) problem() error {
	switch {
	case !plainType(c.MediaType):
		return fmt.Errorf("its MediaType is %q; give a type without parameters and in small letters, such as \"application/json\"", c.MediaType)
	case c.ProblemType != "" && !plainType(c.ProblemType):
		return fmt.Errorf("its ProblemType is %q; give a type without parameters and in small letters, such as \"application/problem+json\"", c.ProblemType)
	case c.Decode == nil, c.Encode == nil:
		return errors.New("its Decode or Encode is nil")
	}
	for _, name := range append([]string{c.MediaType}, c.Also...) {
		ending, isEnding := strings.CutPrefix(name, "+")
		switch {
		case isEnding && (ending == "" || !plainType("application/"+ending)), !isEnding && !plainType(name):
			return fmt.Errorf("its Also holds %q; give whole types and endings in small letters, such as \"text/xml\" and \"+xml\"", name)
		case slices.Contains(formTypes, name):
			return fmt.Errorf("a format must not be called %q, because a plain form of any other site can send that", name)
		}
	}
	return nil
}

// formTypes are what a browser sends for any page, to every site and without asking it.
var formTypes = []string{"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"}

// plainType reports whether name is a media type in small letters, without parameters and wildcards.
func plainType(name string) bool {
	mediaType, params, err := mime.ParseMediaType(name)
	return err == nil && len(params) == 0 && mediaType == name && strings.Contains(name, "/") && !strings.Contains(name, "*")
}

// named says how well the media type, in small letters, names this format: 3 it is MediaType, 2 another whole name, 1 it has an
// ending of it, 0 not at all. Endings count for application types alone: those are not what a plain form of another site can send.
func (c *Codec) named(mediaType string) int {
	switch {
	case mediaType == c.MediaType:
		return 3
	case strings.Contains(mediaType, "/") && slices.Contains(c.Also, mediaType):
		return 2
	case strings.HasPrefix(mediaType, "application/") && slices.ContainsFunc(c.Also, func(name string) bool {
		return strings.HasPrefix(name, "+") && strings.HasSuffix(mediaType, name)
	}):
		return 1
	}
	return 0
}

func (c Codec) encodeProblem(p Problem) (data []byte, contentType string, err error) {
	if contentType = c.ProblemType; contentType == "" {
		contentType = c.MediaType
	}
	if c.EncodeProblem != nil {
		data, err = c.EncodeProblem(p)
	} else {
		data, err = c.Encode(p)
	}
	return data, contentType, err
}

// reader is the format in which the body of a request comes. What is not UTF-8 as it stands is refused.
func (e *Edge) reader(h http.Header) (*Codec, error) {
	c := e.formatOf(h)
	if c == nil {
		return nil, &edgeError{status: http.StatusUnsupportedMediaType, code: "UNSUPPORTED_MEDIA_TYPE", detail: "The body must be sent as " + e.formats() + "."}
	}
	_, params, _ := mime.ParseMediaType(h.Get("Content-Type"))
	charset, encoding := strings.ToLower(params["charset"]), strings.ToLower(h.Get("Content-Encoding"))
	if charset != "" && charset != "utf-8" || encoding != "" && encoding != "identity" {
		return nil, &edgeError{status: http.StatusUnsupportedMediaType, code: "UNSUPPORTED_MEDIA_TYPE", detail: "The body must be in UTF-8 and without a content encoding."}
	}
	return c, nil
}

// formatOf is the format that Content-Type names best, or nil.
func (e *Edge) formatOf(h http.Header) (best *Codec) {
	mediaType, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return nil
	}
	most := 0
	for i := range e.cfg.Codecs {
		if n := e.cfg.Codecs[i].named(mediaType); n > most {
			best, most = &e.cfg.Codecs[i], n
		}
	}
	return best
}

// formats names the formats for people.
func (e *Edge) formats() string {
	var names []string
	for _, c := range e.cfg.Codecs {
		names = append(names, c.MediaType)
	}
	return strings.Join(names, " or ")
}

// writerOf is the format of the answer to a request, by RFC 9110, 12.5.1: what Accept prefers, and where it prefers nothing that
// of the request's body, and else the first. acceptable is false when Accept excludes all of them; with one format alone there
// is nothing to choose, and Accept is not read.
func (e *Edge) writerOf(h http.Header) (c *Codec, acceptable bool) {
	if len(e.cfg.Codecs) == 1 {
		return &e.cfg.Codecs[0], true
	}
	first := e.formatOf(h)
	if first == nil {
		first = &e.cfg.Codecs[0]
	}
	ranges := acceptOf(h)
	if len(ranges) == 0 {
		return first, true
	}
	best := preference{}
	for i := range e.cfg.Codecs {
		c := &e.cfg.Codecs[i]
		p := c.preferred(ranges)
		if p.q > best.q || p.q == best.q && (p.exact > best.exact || p.exact == best.exact && c == first) {
			best, best.codec = p, c
		}
	}
	if best.q == 0 {
		return first, false
	}
	return best.codec, true
}

// preference is how much a format is wanted.
type preference struct {
	q     int // in thousandths
	exact int // 5 by its name, 4 and 3 by another one, 2 by the first half of it, 1 by */*, 0 not at all
	codec *Codec
}

// preferred is what the most exact ranges say of the format.
func (c *Codec) preferred(ranges []mediaRange) (p preference) {
	for _, r := range ranges {
		exact := 0
		half, _, _ := strings.Cut(c.MediaType, "/")
		switch n := c.named(r.name); {
		case n > 0:
			exact = n + 2
		case r.name == half+"/*":
			exact = 2
		case r.name == "*/*":
			exact = 1
		}
		if exact > p.exact || exact == p.exact && exact > 0 && r.q > p.q {
			p.exact, p.q = exact, r.q
		}
	}
	return p
}

// mediaRange is an element of Accept.
type mediaRange struct {
	name string
	q    int
}

// maxElements bounds how much of Accept is read.
const maxElements = 32

// acceptOf reads Accept. Elements that are none are passed over, as if they had not been sent. What is not read any more counts as
// "*/*" of the least weight, so that it cannot be why a request is refused.
func acceptOf(h http.Header) (ranges []mediaRange) {
	list, n := strings.Join(h.Values("Accept"), ","), 0
	for list != "" {
		if n++; n > maxElements {
			return append(ranges, mediaRange{"*/*", 1})
		}
		var element string
		element, list = cutElement(list)
		name, params, err := mime.ParseMediaType(element)
		if err != nil || !strings.Contains(name, "/") {
			continue
		}
		r := mediaRange{name, 1000}
		if s, ok := params["q"]; ok {
			q, err := strconv.ParseFloat(s, 64)
			if err != nil || !(q >= 0 && q <= 1) {
				continue
			}
			r.q = int(q*1000 + 0.5)
		}
		ranges = append(ranges, r)
	}
	return ranges
}

// cutElement cuts the first element off a list. A comma within quotes is part of an element.
func cutElement(list string) (element, rest string) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case c == ',' && !quoted:
			return list[:i], list[i+1:]
		}
	}
	return list, ""
}
