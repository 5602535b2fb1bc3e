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

// problem reports what is wrong with the codec.
func (c Codec) problem() error {
	switch mediaType, params, err := mime.ParseMediaType(c.MediaType); {
	case err != nil, len(params) > 0, mediaType != c.MediaType, !strings.Contains(mediaType, "/"):
		return fmt.Errorf("its MediaType is %q; give a type without parameters and in small letters, such as \"application/json\"", c.MediaType)
	case c.Decode == nil, c.Encode == nil:
		return errors.New("its Decode or Encode is nil")
	}
	for _, name := range c.Also {
		if name != strings.ToLower(name) || !strings.HasPrefix(name, "+") && strings.Count(name, "/") != 1 {
			return fmt.Errorf("Also holds %q; give whole types and endings in small letters, such as \"text/xml\" and \"+xml\"", name)
		}
	}
	return nil
}

// named reports whether the media type, in small letters, is a name of this format. Endings count for application types alone:
// those are not what a plain form of another site can send.
func (c Codec) named(mediaType string) bool {
	return mediaType == c.MediaType || slices.ContainsFunc(c.Also, func(name string) bool {
		if strings.HasPrefix(name, "+") {
			return strings.HasPrefix(mediaType, "application/") && strings.HasSuffix(mediaType, name)
		}
		return mediaType == name
	})
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

// formatOf is the format that Content-Type names, or nil.
func (e *Edge) formatOf(h http.Header) *Codec {
	mediaType, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return nil
	}
	for i := range e.cfg.Codecs {
		if e.cfg.Codecs[i].named(mediaType) {
			return &e.cfg.Codecs[i]
		}
	}
	return nil
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
	exact int // 3 by its name, 2 by the first half of it, 1 by */*, 0 not at all
	codec *Codec
}

// preferred is what the most exact ranges say of the format.
func (c *Codec) preferred(ranges []mediaRange) (p preference) {
	for _, r := range ranges {
		exact := 0
		half, _, _ := strings.Cut(c.MediaType, "/")
		switch {
		case c.named(r.name):
			exact = 3
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

// maxRanges bounds how much of Accept is read.
const maxRanges = 32

// acceptOf reads Accept. Elements that are none are passed over, as if they had not been sent.
func acceptOf(h http.Header) (ranges []mediaRange) {
	for element := range strings.SplitSeq(strings.Join(h.Values("Accept"), ","), ",") {
		if len(ranges) == maxRanges {
			break
		}
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
