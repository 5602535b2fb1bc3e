package httpedge

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"github.com/tekil-go/tekil/requestctx"
)

// DefaultFileLimit is how long the files of a request may be together: 32 MiB.
const DefaultFileLimit = 32 << 20

const (
	// maxFiles is how many files a request may bring.
	maxFiles = 16
	// fileMemory is how much of a file is kept in memory, in bytes. A longer one goes to the disk as a whole.
	fileMemory = 1 << 20
	// framing is what the parts' headers and what lies between them may take, in bytes.
	framing = 64 << 10
	// formType is the media type that files come in, and commandPart the part of it that holds the command.
	formType    = "multipart/form-data"
	commandPart = "command"
)

var (
	errBody     = badForm("The body did not arrive whole.")
	errForm     = badForm("The form is malformed or did not arrive whole.")
	errFilePart = badForm("The form holds a file that this route does not take.")

	errCrossOrigin = &edgeError{
		status: http.StatusForbidden, code: "CROSS_ORIGIN", detail: "A form from another site is not taken without an Idempotency-Key header.",
	}
	errEnded = fmt.Errorf("httpedge: the request that brought this file has ended: %w", fs.ErrClosed)
)

func badForm(format string, args ...any) *edgeError {
	return &edgeError{status: http.StatusBadRequest, code: codeMalformed, detail: fmt.Sprintf(format, args...)}
}

func badType(format string, args ...any) *edgeError {
	return &edgeError{status: http.StatusUnsupportedMediaType, code: "UNSUPPORTED_MEDIA_TYPE", detail: fmt.Sprintf(format, args...)}
}

// isForm reports whether a request's body is one that can hold files.
func isForm(h http.Header) bool {
	mediaType, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && mediaType == formType
}

// A form is one that is being read. Its functions are called in the order of the parts.
type form struct {
	edge  *Edge
	w     http.ResponseWriter
	limit int64                               // of the files together
	files *uploads                            // what has arrived, whatever read returns
	take  func(*Codec, []byte) error          // decodes the command
	put   func(string, requestctx.File) error // puts a file that has arrived into it
}

// read reads the form from a request.
func (f *form) read(r *http.Request) error {
	// A plain form of another site can send this type, with the visitor's cookies. It cannot set a header, and a script that does
	// has been let in by a preflight.
	if len(r.Header.Values(keyHeader)) == 0 && new(http.CrossOriginProtection).Check(r) != nil {
		return errCrossOrigin
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return badType("The form must come without a content encoding.")
	}
	whole := f.edge.cfg.BodyLimit + f.limit + framing
	if whole < 0 {
		whole = math.MaxInt64
	}
	body := http.MaxBytesReader(f.w, r.Body, whole)
	r.Body = formBody{io.MultiReader(body, strings.NewReader(formEnd)), body}
	parts, err := r.MultipartReader()
	switch {
	case errors.Is(err, http.ErrMissingBoundary):
		return errForm
	case err != nil:
		return fmt.Errorf("httpedge: the form has been read before the edge could: %w", err)
	}
	for n := 0; ; n++ {
		part, err := parts.NextRawPart()
		switch {
		case err == io.EOF && n > 0:
			_, err = io.Copy(io.Discard, r.Body) // so that the server sees a client that hangs up
			return unread(err, errForm)
		case err == io.EOF:
			return badForm("The form must begin with a part named %s.", commandPart)
		case err != nil:
			return unread(err, errForm)
		}
		name := part.FormName()
		switch encoding := part.Header.Get("Content-Transfer-Encoding"); {
		case !plain(encoding), len(part.Header.Values("Content-Disposition")) != 1:
			return errForm
		case n == 0 != (name == commandPart):
			return badForm("The form must begin with a part named %s, and have only one.", commandPart)
		case n == 0:
			err = f.command(part)
		case part.FileName() == "":
			return badForm("The form has a part that is no file. All parts behind the first must have a filename.")
		case n > maxFiles:
			return badForm("The form has more than %d files.", maxFiles)
		default:
			err = f.file(part, name)
		}
		if err != nil {
			return err
		}
	}
}

// formEnd stands behind a form, where it is passed over. Without it, package multipart gives io.EOF both at the end of a form and
// where one breaks off within the headers of a part, and so a form that has lost its last files would be taken for a whole one.
// Headers go wrong over it, and content has no boundary behind it.
const formEnd = "\r\n:\r\n"

type formBody struct {
	io.Reader
	io.Closer
}

// plain reports whether a part comes as it is. The other encodings are deprecated in forms (RFC 7578, 4.7).
func plain(encoding string) bool {
	switch strings.ToLower(encoding) {
	case "", "7bit", "8bit", "binary":
		return true
	}
	return false
}

// command reads the part that holds the command.
func (f *form) command(part *multipart.Part) error {
	h := http.Header(part.Header)
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/json")
	}
	codec, err := f.edge.reader(h)
	if err != nil {
		return badType("The part named %s must be sent as %s in UTF-8.", commandPart, f.edge.formats())
	}
	body, err := io.ReadAll(http.MaxBytesReader(f.w, part, f.edge.cfg.BodyLimit))
	if err != nil {
		return unread(err, errForm)
	}
	return f.take(codec, body)
}

// file receives a file and puts it into the command.
func (f *form) file(part *multipart.Part, field string) error {
	left := f.limit - f.files.size
	up, sum, err := f.files.receive(http.MaxBytesReader(f.w, part, left))
	if tooLong, ok := errors.AsType[*http.MaxBytesError](err); ok && tooLong.Limit == left {
		detail := fmt.Sprintf("The files of a request may have %d bytes together.", f.limit)
		return &edgeError{status: http.StatusRequestEntityTooLarge, code: "FILE_TOO_LARGE", detail: detail}
	}
	if _, ours := errors.AsType[*fs.PathError](err); ours { // the disk is full, or there is none
		return err
	}
	if err != nil {
		return unread(err, errForm)
	}
	contentType := part.Header.Get("Content-Type")
	if _, _, err := mime.ParseMediaType(contentType); err != nil {
		contentType = ""
	}
	err = f.put(field, requestctx.NewFile(part.FileName(), contentType, up, up.size, sum))
	if err != nil && len(fieldErrors(err, nil)) == 0 {
		err = f.edge.own(err, errFilePart)
	}
	return err
}

// unread says why a body could not be read: other where there is no better reason, and nil where err is nil.
func unread(err error, other *edgeError) error {
	if err == nil {
		return nil
	}
	var timeout net.Error
	switch long, tooLong := errors.AsType[*http.MaxBytesError](err); {
	case tooLong:
		return &edgeError{status: http.StatusRequestEntityTooLarge, code: "BODY_TOO_LARGE", detail: fmt.Sprintf("The body is longer than %d bytes.", long.Limit)}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &edgeError{status: http.StatusRequestTimeout, code: "REQUEST_TIMEOUT", detail: "The body did not arrive in time."}
	}
	return other
}

// uploads are the files of one request.
type uploads struct {
	all  []*upload
	size int64 // of all together
}

// receive takes a file in and its SHA-256 on the way. An error of the disk is a [*fs.PathError].
func (u *uploads) receive(from io.Reader) (up *upload, sum [32]byte, err error) {
	up = &upload{}
	u.all = append(u.all, up)
	hash := sha256.New()
	in := io.TeeReader(from, hash)
	var memory bytes.Buffer
	switch up.size, err = io.CopyN(&memory, in, fileMemory+1); err {
	case io.EOF: // that is all of it
		up.memory = bytes.NewReader(memory.Bytes())
	case nil:
		if err = up.spill(memory.Bytes(), in); err != nil {
			return nil, sum, err
		}
	default:
		return nil, sum, err
	}
	u.size += up.size
	return up, [32]byte(hash.Sum(nil)), nil
}

// end makes the files' contents unreadable and removes what is on the disk. It may be called more than once.
func (u *uploads) end() {
	for _, up := range u.all {
		up.end()
	}
}

// upload is the content of a file. It is safe for concurrent use once it has been received.
type upload struct {
	size   int64
	memory *bytes.Reader // of a short one
	disk   *os.File      // of a long one
	named  bool          // the file on the disk has a name still
	ended  atomic.Bool
}

// spill puts the content on the disk: what has been read of it, and the rest. Where the system lets it, the name is gone at once,
// so that nothing is left even by a process that is killed.
func (up *upload) spill(begin []byte, rest io.Reader) error {
	var err error
	if up.disk, err = os.CreateTemp("", "httpedge-*"); err != nil {
		return err
	}
	up.named = os.Remove(up.disk.Name()) != nil
	if _, err = up.disk.Write(begin); err != nil {
		return err
	}
	n, err := io.Copy(up.disk, rest)
	up.size += n
	return err
}

func (up *upload) ReadAt(p []byte, at int64) (n int, err error) {
	switch {
	case up.ended.Load():
		return 0, errEnded
	case up.disk == nil:
		return up.memory.ReadAt(p, at)
	}
	if n, err = up.disk.ReadAt(p, at); err != nil && up.ended.Load() {
		err = errEnded
	}
	return n, err
}

func (up *upload) end() {
	if up.ended.Swap(true) || up.disk == nil {
		return
	}
	_ = up.disk.Close() // nobody will read it
	if up.named {
		_ = os.Remove(up.disk.Name())
	}
}
