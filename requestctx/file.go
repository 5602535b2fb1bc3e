package requestctx

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// File is a file that came with a request, for a field of a command: a File, a *File or a []File, and not embedded. An edge makes
// it while the file streams in. The zero File is none.
//
// Its size and its SHA-256 are what a fingerprint is made of (rule rec-9): the same file again is a replay, and another one under
// the same key a conflict. Its name and content type are not in it, because they are what the client's program says of the file
// and not the file, and another program, or a retry from another place, says it differently. A handler that acts on one of them
// should take it from a field of its own that the edge copies it into, and then it is in.
//
// No body can claim a file: nothing of a File can be set from outside, and UnmarshalJSON refuses. Tag the field json:"-" all the
// same, so that a body which tries is told that there is no such member.
//
// A File is immutable and safe for concurrent use. It is not for results, because what is recorded of it is not the file.
type File struct {
	name, contentType string
	size              int64
	sha256            string
	content           io.ReaderAt
}

// NewFile makes a File, for edges and for tests of handlers. Of the name the last element is kept, see [File.Name]; size and sum
// must be those of the content, which is not read here. content must be safe for concurrent use. When the content is no longer
// there, each of its reads must say so, also one of no bytes.
func NewFile(name, contentType string, content io.ReaderAt, size int64, sum [32]byte) File {
	return File{name: baseName(name), contentType: contentType, size: size, sha256: hex.EncodeToString(sum[:]), content: content}
}

// IsZero reports whether there is no file. An empty file is one.
func (f File) IsZero() bool { return f.sha256 == "" }

// Name is what the client calls the file: the last element of its path, without control characters, at most 255 bytes; empty where
// nothing is left. Nobody has checked it: do not open a file by it, and escape it where it is shown.
func (f File) Name() string { return f.name }

// ContentType is what the client says the file is, or empty. Nobody has looked whether that is so.
func (f File) ContentType() string { return f.contentType }

// Size is the length in bytes.
func (f File) Size() int64 { return f.size }

// SHA256 is the hash of the content, in hexadecimal.
func (f File) SHA256() string { return f.sha256 }

// Open gives the content from its start, as often as it is asked for. It is there until the dispatch of the request has returned,
// which waits for the handler, and not for what the handler has begun beside it: after that, Open and what it gave fail with an
// error that is [fs.ErrClosed]. The zero File has no content: [fs.ErrNotExist].
func (f File) Open() (io.ReadSeekCloser, error) {
	if f.content == nil {
		return nil, fmt.Errorf("requestctx: no file came with the request: %w", fs.ErrNotExist)
	}
	if _, err := f.content.ReadAt(nil, 0); err != nil && err != io.EOF {
		return nil, err
	}
	return section{io.NewSectionReader(f.content, 0, f.size)}, nil
}

// section holds nothing that would have to be given back.
type section struct{ *io.SectionReader }

func (section) Close() error { return nil }

// MarshalJSON gives what the fingerprint is made of: {"sha256":"…","size":12}, and null for the zero File. Neither the name, which
// may be personal, nor anything of the content is in it. Fingerprints that are stored hang on its form.
func (f File) MarshalJSON() ([]byte, error) {
	if f.IsZero() {
		return []byte("null"), nil
	}
	return fmt.Appendf(nil, `{"sha256":"%s","size":%d}`, f.sha256, f.size), nil
}

// UnmarshalJSON always fails: a file comes as a part of a request and never in its text.
func (*File) UnmarshalJSON([]byte) error {
	return errors.New("requestctx: a file cannot be read from JSON; send it as a part of its own")
}

// maxName is the longest name that is kept, in bytes.
const maxName = 255

// baseName makes a name out of what a client calls a file, which may be a path of any system.
func baseName(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	s = strings.TrimSpace(path.Base(strings.ReplaceAll(s, `\`, "/")))
	if len(s) > maxName {
		s = s[:maxName]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	switch s {
	case ".", "..", "/":
		return ""
	}
	return s
}
