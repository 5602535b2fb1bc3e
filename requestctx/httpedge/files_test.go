package httpedge_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// TestMain fails where the tests leave goroutines or files behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := leftovers(); len(left) > 0 {
			fmt.Fprintln(os.Stderr, "files are left behind:", left)
			code = 1
		}
		os.Exit(code)
	}))
}

// leftovers are the temporary files of the edge: those that have a name, and, where the system shows them, those that are open.
func leftovers() []string {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "httpedge-*"))
	open, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range open {
		if name, err := os.Readlink(fd); err == nil && strings.HasPrefix(filepath.Base(name), "httpedge-") {
			left = append(left, name)
		}
	}
	return left
}

// nothingLeft waits until no upload of any test that runs beside this one is there.
func nothingLeft(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for left := leftovers(); len(left) > 0; left = leftovers() {
		if time.Now().After(deadline) {
			t.Fatalf("files are left behind: %v", left)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// attach is marked and takes files.
type attach struct {
	Title string            `json:"title" validate:"required"`
	Scan  requestctx.File   `json:"-" validate:"required"`
	More  []requestctx.File `json:"-"`
}

func (attach) CommandName() bus.Name[attached] { return "scans.attach" }
func (attach) Idempotent()                     {}

// careless is marked and its field has no tag.
type careless struct {
	Title string             `json:"title"`
	Scan  requestctx.File    `json:"scan"`
	More  []requestctx.File  `json:"more"`
	Spare *requestctx.File   `json:"spare"`
	Fixed [1]requestctx.File `json:"fixed"`
}

func (careless) CommandName() bus.Name[attached] { return "scans.careless" }
func (careless) Idempotent()                     {}

// paste takes files and is not marked.
type paste struct {
	Title string          `json:"title"`
	Scan  requestctx.File `json:"-"`
}

func (paste) CommandName() bus.Name[attached] { return "scans.paste" }

type attached struct {
	Title string   `json:"title"`
	Sums  []string `json:"sums"` // of what the handler has read
}

// readAll is what a handler does with its files.
func readAll(title string, files ...requestctx.File) (attached, error) {
	done := attached{Title: title}
	for _, f := range files {
		in, err := f.Open()
		if err != nil {
			return attached{}, err
		}
		hash := sha256.New()
		n, err := io.Copy(hash, in)
		if err = errors.Join(err, in.Close()); err != nil {
			return attached{}, err
		}
		sum := hex.EncodeToString(hash.Sum(nil))
		if n != f.Size() || sum != f.SHA256() {
			return attached{}, errors.New("the content is not that of the file")
		}
		done.Sums = append(done.Sums, sum)
	}
	return done, nil
}

func sumOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// archive is a rig for commands with files.
type archive struct {
	*rig
	mu    sync.Mutex
	given []requestctx.File // all that File was called with
}

func (a *archive) give(f requestctx.File) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.given = append(a.given, f)
}

// closed fails the test if the content of a file that the edge has made can still be read.
func (a *archive) closed(want int) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.given) != want {
		a.t.Errorf("%d files were made, want %d", len(a.given), want)
	}
	for i, f := range a.given {
		if in, err := f.Open(); !errors.Is(err, fs.ErrClosed) {
			a.t.Errorf("file %d can be opened after the end: %v, %v", i, in, err)
		}
	}
}

const scans = "/v1/scans"

// newArchive makes a rig with the routes /v1/scans, /v1/careless, /v1/pastes and /v1/check. A nil handle reads all files.
func newArchive(t testing.TB, config httpedge.Config, change func(*httpedge.Options[attach, attached]), handle func(context.Context, attach) (attached, error)) *archive {
	t.Helper()
	a := &archive{rig: newRig(t, setup{config: config})}
	if handle == nil {
		handle = func(ctx context.Context, c attach) (attached, error) {
			if err := a.mem.Insert(ctx, c.Title); err != nil {
				return attached{}, err
			}
			return readAll(c.Title, append([]requestctx.File{c.Scan}, c.More...)...)
		}
	}
	var err error
	a.bus, err = bus.New(
		command(a.rig, nil, handle),
		command(a.rig, nil, func(ctx context.Context, c careless) (attached, error) {
			return readAll(c.Title, c.Scan)
		}),
		command(a.rig, nil, func(ctx context.Context, c paste) (attached, error) { return readAll(c.Title, c.Scan) }),
	)
	if err != nil {
		t.Fatal(err)
	}
	o := httpedge.Options[attach, attached]{Status: http.StatusCreated, File: a.put}
	if change != nil {
		change(&o)
	}
	route(a.rig, "POST "+scans, o)
	route(a.rig, "POST /v1/careless", httpedge.Options[careless, attached]{
		File: func(c *careless, _ string, f requestctx.File) error { a.give(f); c.Scan = f; return nil },
	})
	route(a.rig, "POST /v1/pastes", httpedge.Options[paste, attached]{
		File: func(c *paste, _ string, f requestctx.File) error { a.give(f); c.Scan = f; return nil },
	})
	check, err := httpedge.Check(a.edge, a.bus, "POST /v1/check", httpedge.Options[attach, attached]{
		File: a.put, FileLimit: 100,
		Preview: func(_ context.Context, c attach) (any, error) { return readAll(c.Title, c.Scan) },
	})
	if err != nil {
		t.Fatal(err)
	}
	a.mux.Handle("POST /v1/check", check)
	return a
}

func (a *archive) put(c *attach, field string, f requestctx.File) error {
	a.give(f)
	switch {
	case field == "scan" && c.Scan.IsZero():
		c.Scan = f
	case field == "more":
		c.More = append(c.More, f)
	case field == "scan":
		return validation.Field("scan", "one", "may be there only once")
	case field == "locked":
		return errForbidden
	default:
		return errors.New("no such field")
	}
	return nil
}

// A piece is a part of a form as it goes over the wire.
type piece struct{ header, body string }

func commandPiece(body string) piece {
	return piece{"Content-Disposition: form-data; name=\"command\"\r\n", body}
}

func filePiece(field, name, body string) piece {
	return piece{"Content-Disposition: form-data; name=\"" + field + "\"; filename=\"" + name + "\"\r\nContent-Type: application/pdf\r\n", body}
}

// formOf writes a form as it stands, with nothing mended.
func formOf(boundary string, pieces ...piece) string {
	var b strings.Builder
	for _, p := range pieces {
		b.WriteString("--" + boundary + "\r\n" + p.header + "\r\n" + p.body + "\r\n")
	}
	return b.String() + "--" + boundary + "--\r\n"
}

const formHeader = "Content-Type: multipart/form-data; boundary="

// send posts a form.
func (a *archive) send(path string, body string, headers ...string) *reply {
	a.t.Helper()
	return a.do("POST", path, body, append([]string{formHeader + "b1"}, headers...)...)
}

var usualForm = []piece{commandPiece(`{"title":"t"}`), filePiece("scan", "a.pdf", "content")}

func TestF17_TheSameFileAgainIsAReplayHoweverTheFormIsWritten(t *testing.T) {
	t.Parallel()
	const head = `Content-Disposition: form-data; name="scan"; filename=`
	for _, size := range []int{7, 3 << 20} {
		content := strings.Repeat("c", size)
		base := []piece{commandPiece(`{"title":"t"}`), filePiece("scan", "a.pdf", content)}
		a := newArchive(t, httpedge.Config{}, nil, nil)
		first := a.send(scans, formOf("b1", base...), k1).ok(201, "false")
		for name, form := range map[string]struct{ boundary, body string }{
			"again":              {"b1", formOf("b1", base...)},
			"other boundary":     {"----WebKitFormBoundaryX", formOf("----WebKitFormBoundaryX", base...)},
			"other file name":    {"b1", formOf("b1", base[0], filePiece("scan", "copy of a.doc", content))},
			"other content type": {"b1", formOf("b1", base[0], piece{head + "\"a.pdf\"\r\nContent-Type: text/plain; charset=utf-16\r\n", content})},
			"no content type":    {"b1", formOf("b1", base[0], piece{head + "a.pdf\r\n", content})},
			"other headers":      {"b1", formOf("b1", base[0], piece{"X-Part: 7\r\nContent-Transfer-Encoding: BINARY\r\n" + head + "\"a.pdf\"\r\n", content})},
			"preamble":           {"b1", "for old mail programs\r\n" + formOf("b1", base...) + "the end\r\n"},
			"command as a blob": {"b1", formOf("b1", piece{
				"Content-Disposition: form-data; name=\"command\"; filename=\"blob\"\r\nContent-Type: application/json; charset=UTF-8\r\n", " {\n\"title\" : \"t\" } ",
			}, base[1])},
			"command of another type": {"b1", formOf("b1", piece{"Content-Disposition: form-data; name=command\r\nContent-Type: application/vnd.acme+json\r\n", `{"title":"\u0074"}`}, base[1])},
		} {
			again := a.do("POST", scans, form.body, formHeader+form.boundary, k1)
			if again.status != 201 || again.header.Get("Idempotency-Replayed") != "true" || again.body != first.body {
				t.Errorf("%s, %d bytes: %d %s", name, size, again.status, again.body)
			}
		}
		if !strings.Contains(first.body, sumOf(content)) {
			t.Errorf("the handler has read something else: %s", first.body)
		}
		a.want(1, 1, 1)
		a.closed(10)
	}
	nothingLeft(t)
}

func TestF17_AnotherFileUnderTheSameKeyIsAConflict(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("c", 3<<20)
	for _, content := range []string{"content", long} {
		c := commandPiece(`{"title":"t"}`)
		scan, more := filePiece("scan", "a.pdf", content), filePiece("more", "b.pdf", content+"2")
		a := newArchive(t, httpedge.Config{}, nil, nil)
		a.send(scans, formOf("b1", c, scan, more), k1).ok(201, "false")
		for name, form := range map[string][]piece{
			"other content at its end":   {c, filePiece("scan", "a.pdf", content[:len(content)-1]+"x"), more},
			"other content at its begin": {c, filePiece("scan", "a.pdf", "x"+content[1:]), more},
			"longer":                     {c, filePiece("scan", "a.pdf", content+"\x00"), more},
			"shorter":                    {c, filePiece("scan", "a.pdf", content[1:]), more},
			"empty":                      {c, filePiece("scan", "a.pdf", ""), more},
			"a file less":                {c, scan},
			"a file more":                {c, scan, more, more},
			"an empty file more":         {c, scan, more, filePiece("more", "x", "")},
			"swapped":                    {c, filePiece("scan", "a.pdf", content+"2"), filePiece("more", "b.pdf", content)},
			"other command":              {commandPiece(`{"title":"u"}`), scan, more},
		} {
			res := a.send(scans, formOf("b1", form...), k1)
			if res.status != 409 || res.problem().Code != "IDEMPOTENCY_KEY_CONFLICT" {
				t.Errorf("%s: %d %s", name, res.status, res.body)
			}
		}
		a.send(scans, formOf("b1", c, scan, more), k1).ok(201, "true")
		a.want(1, 1, 1)
	}
	nothingLeft(t)
}

func TestF17_TheOrderOfFilesOfOneFieldIsInTheFingerprintAndThatOfFieldsIsNot(t *testing.T) {
	t.Parallel()
	c, scan := commandPiece(`{"title":"t"}`), filePiece("scan", "a", "1")
	two, three := filePiece("more", "a", "2"), filePiece("more", "a", "3")
	a := newArchive(t, httpedge.Config{}, nil, nil)
	first := a.send(scans, formOf("b1", c, scan, two, three), k1).ok(201, "false")
	same(t, "what was read", first.body, `{"title":"t","sums":["`+sumOf("1")+`","`+sumOf("2")+`","`+sumOf("3")+`"]}`+"\n")
	a.send(scans, formOf("b1", c, two, three, scan), k1).ok(201, "true")
	a.send(scans, formOf("b1", c, scan, three, two), k1).fails(409, "IDEMPOTENCY_KEY_CONFLICT", httpedge.Never)
	a.want(1, 1, 1)
	nothingLeft(t)
}

func TestFilesOfEverySizeReachTheHandlerAndEndWithTheRequest(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 4095, 4096, 4097, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 + 3} {
		content := strings.Repeat("0123456789abcde\r\n--b", size/20+1)[:size]
		var kept requestctx.File
		var open io.ReadSeekCloser
		a := newArchive(t, httpedge.Config{}, nil, func(_ context.Context, c attach) (done attached, err error) {
			kept = c.Scan
			if open, err = c.Scan.Open(); err != nil {
				return done, err
			}
			if size > 0 {
				if _, err = open.Seek(int64(size-1), io.SeekStart); err != nil {
					return done, err
				}
			}
			return readAll(c.Title, c.Scan, c.Scan)
		})
		res := a.send(scans, formOf("b1", commandPiece(`{"title":"t"}`), filePiece("scan", `C:\x\a.pdf`, content)), k1).ok(201, "false")
		same(t, "what was read", res.body, `{"title":"t","sums":["`+sumOf(content)+`","`+sumOf(content)+`"]}`+"\n")
		same(t, "name", kept.Name(), "a.pdf")
		same(t, "type", kept.ContentType(), "application/pdf")
		a.closed(1)
		if size > 0 {
			if n, err := open.Read(make([]byte, 1)); n != 0 || !errors.Is(err, fs.ErrClosed) || strings.Contains(err.Error(), os.TempDir()) {
				t.Errorf("%d bytes: what was opened gave %d bytes after the end: %v", size, n, err)
			}
		}
	}
	nothingLeft(t)
}

func TestV03_ACorrectedFormWithTheSameKeyRuns(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{}, nil, nil)
	scan := filePiece("scan", "a.pdf", strings.Repeat("x", 2<<20))
	a.send(scans, formOf("b1", commandPiece(`{"title":""}`), scan), k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	a.send(scans, formOf("b1", commandPiece(`{"title":"t"}`)), k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey) // without its file
	a.send(scans, formOf("b1", commandPiece(`{"titel":"t"}`), scan), k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	a.send(scans, formOf("b1", commandPiece(`{"title":"t"}`), scan, scan), k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	a.want(0, 0, 0)
	a.send(scans, formOf("b1", commandPiece(`{"title":"t"}`), scan), k1).ok(201, "false")
	a.want(1, 1, 1)
	a.closed(4)
	nothingLeft(t)
}

func TestFormsThatAreNotWhatTheyShouldBeAreRefusedAndClaimNothing(t *testing.T) {
	t.Parallel()
	const file = "Content-Disposition: form-data; name=\"scan\"; filename=\"a\"\r\n"
	c, scan := commandPiece(`{"title":"t"}`), filePiece("scan", "a.pdf", "content")
	long := filePiece("scan", "a.pdf", strings.Repeat("x", 2<<20))
	tooMany := slices.Repeat([]piece{filePiece("more", "a", "1")}, 17)
	boundary := formHeader + "b1"
	for _, f := range []struct {
		name, contentType, body string
		status                  int
		code                    string
	}{
		{"no boundary", "Content-Type: multipart/form-data", formOf("b1", c, scan), 400, "MALFORMED_REQUEST"},
		{"empty boundary", "Content-Type: multipart/form-data; boundary=\"\"", formOf("", c, scan), 400, "MALFORMED_REQUEST"},
		{"another boundary", formHeader + "b2", formOf("b1", c, scan), 400, "MALFORMED_REQUEST"},
		{"another kind of multipart", "Content-Type: multipart/mixed; boundary=b1", formOf("b1", c, scan), 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"a plain form", "Content-Type: application/x-www-form-urlencoded", "command=1", 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"nothing", boundary, "", 400, "MALFORMED_REQUEST"},
		{"no parts", boundary, "--b1--\r\n", 400, "MALFORMED_REQUEST"},
		{"no command", boundary, formOf("b1", scan), 400, "MALFORMED_REQUEST"},
		{"the command second", boundary, formOf("b1", scan, c), 400, "MALFORMED_REQUEST"},
		{"a second command", boundary, formOf("b1", c, scan, c), 400, "MALFORMED_REQUEST"},
		{"a second command as a file", boundary, formOf("b1", c, long, filePiece("command", "x", `{"title":"u"}`)), 400, "MALFORMED_REQUEST"},
		{"the command in other letters", boundary, formOf("b1", piece{strings.Replace(c.header, "command", "Command", 1), c.body}, scan), 400, "MALFORMED_REQUEST"},
		{"a part without a filename", boundary, formOf("b1", c, long, piece{"Content-Disposition: form-data; name=\"more\"\r\n", "x"}), 400, "MALFORMED_REQUEST"},
		{"an empty filename", boundary, formOf("b1", c, long, filePiece("more", "", "")), 400, "MALFORMED_REQUEST"},
		{"a part without a name", boundary, formOf("b1", c, piece{"Content-Disposition: form-data; filename=a\r\n", "x"}), 400, "MALFORMED_REQUEST"},
		{"a part without a disposition", boundary, formOf("b1", c, piece{"Content-Type: text/plain\r\n", "x"}), 400, "MALFORMED_REQUEST"},
		{"another disposition", boundary, formOf("b1", c, piece{"Content-Disposition: attachment; name=scan; filename=a\r\n", "x"}), 400, "MALFORMED_REQUEST"},
		{"two dispositions", boundary, formOf("b1", c, piece{file + strings.Replace(file, "scan", "more", 1), "x"}), 400, "MALFORMED_REQUEST"},
		{"base64", boundary, formOf("b1", c, piece{file + "Content-Transfer-Encoding: base64\r\n", "eA=="}), 400, "MALFORMED_REQUEST"},
		{"quoted-printable", boundary, formOf("b1", c, piece{file + "Content-Transfer-Encoding: quoted-printable\r\n", "=20"}), 400, "MALFORMED_REQUEST"},
		{"a broken part header", boundary, formOf("b1", c, long, piece{"no header\r\n", "x"}), 400, "MALFORMED_REQUEST"},
		{"an unknown field", boundary, formOf("b1", c, long, filePiece("other", "a", "x")), 400, "MALFORMED_REQUEST"},
		{"a field of a known error", boundary, formOf("b1", c, long, filePiece("locked", "a", "x")), 403, "FORBIDDEN"},
		{"one file twice", boundary, formOf("b1", c, long, scan), 400, "VALIDATION_FAILED"},
		{"too many files", boundary, formOf("b1", append([]piece{c}, tooMany...)...), 400, "MALFORMED_REQUEST"},
		{"a command of another type", boundary, formOf("b1", piece{c.header + "Content-Type: text/plain\r\n", c.body}, scan), 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"a command of another charset", boundary, formOf("b1", piece{c.header + "Content-Type: application/json; charset=latin1\r\n", c.body}, scan), 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"a command in a content encoding", boundary, formOf("b1", piece{c.header + "Content-Encoding: gzip\r\n", c.body}, scan), 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"a command that is not JSON", boundary, formOf("b1", commandPiece(`{"title":`), scan), 400, "MALFORMED_REQUEST"},
		{"a command that claims a file", boundary, formOf("b1", commandPiece(`{"title":"t","Scan":{"size":1,"sha256":"00"}}`)), 400, "MALFORMED_REQUEST"},
		{"a command that is too long", boundary, formOf("b1", commandPiece(`{"title":"`+strings.Repeat("x", 1<<20)+`"}`), scan), 413, "BODY_TOO_LARGE"},
		{"a preamble that is too long", boundary, strings.Repeat(strings.Repeat("x", 998)+"\r\n", 40<<10) + formOf("b1", c, scan), 413, "BODY_TOO_LARGE"},
		{"an end that is too long", boundary, formOf("b1", c, scan) + strings.Repeat("x", 40<<20), 413, "BODY_TOO_LARGE"},
		{"files that are too long", boundary, formOf("b1", c, filePiece("scan", "a", strings.Repeat("x", 32<<20+1))), 413, "FILE_TOO_LARGE"},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t, httpedge.Config{Statuses: map[string]int{"FORBIDDEN": 403}}, nil, nil)
			a.do("POST", scans, f.body, f.contentType, k1).fails(f.status, f.code, httpedge.SameKey)
			a.want(0, 0, 0)
			a.closed(len(a.given))
			nothingLeft(t)
		})
	}
	a := newArchive(t, httpedge.Config{}, nil, nil)
	a.send(scans, formOf("b1", c, scan), k1, "Content-Encoding: gzip").fails(415, "UNSUPPORTED_MEDIA_TYPE", httpedge.SameKey)
	// Also where File takes every name.
	a.send("/v1/careless", formOf("b1", c, filePiece("command", "x", `{"title":"u"}`)), k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	a.want(0, 0, 0)
}

func TestTheLimitOfFilesIsForAllOfThemTogetherAndIsNamed(t *testing.T) {
	t.Parallel()
	const limit = 3 << 20
	c := commandPiece(`{"title":"t"}`)
	a := newArchive(t, httpedge.Config{BodyLimit: 100}, func(o *httpedge.Options[attach, attached]) { o.FileLimit = limit }, nil)
	scan, rest := filePiece("scan", "a", strings.Repeat("x", 2<<20)), strings.Repeat("y", 1<<20)
	p := a.send(scans, formOf("b1", c, scan, filePiece("more", "b", rest+"y")), k1).fails(413, "FILE_TOO_LARGE", httpedge.SameKey)
	if !strings.Contains(p.Detail, strconv.Itoa(limit)) {
		t.Errorf("the limit is not named: %s", p.Detail)
	}
	a.send(scans, formOf("b1", c, scan, filePiece("more", "b", rest), filePiece("more", "c", "z")), k1).fails(413, "FILE_TOO_LARGE", httpedge.SameKey)
	a.want(0, 0, 0)
	a.send(scans, formOf("b1", c, scan, filePiece("more", "b", rest), filePiece("more", "c", "")), k1).ok(201, "false")
	sixteen := slices.Repeat([]piece{filePiece("more", "a", "1")}, 16)
	sixteen[15] = filePiece("scan", "a", "1")
	a.send(scans, formOf("b1", append([]piece{c}, sixteen...)...), "Idempotency-Key: another-key").ok(201, "false")
	a.want(2, 2, 2)
	nothingLeft(t)
}

func TestAFormThatStopsAnywhereClaimsNothing(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{}, nil, nil)
	whole := formOf("b1", append(slices.Clone(usualForm), filePiece("more", "b", "more"))...)
	end := len(whole) - len("\r\n")
	for n := range end {
		a.send(scans, whole[:n], k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	}
	a.want(0, 0, 0)
	a.closed(len(a.given))

	long := formOf("b1", commandPiece(`{"title":"t"}`), filePiece("scan", "a", strings.Repeat("x", 2<<20)))
	for _, n := range []int{1 << 20, 1<<20 + 200, len(long) - 20} {
		a.send(scans, long[:n], k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	}
	for _, broken := range []struct {
		err    error
		status int
		code   string
	}{{io.ErrUnexpectedEOF, 400, "MALFORMED_REQUEST"}, {os.ErrDeadlineExceeded, 408, "REQUEST_TIMEOUT"}} {
		for _, n := range []int{0, 30, 120, len(long) / 2, len(long)} {
			r := request("POST", scans, "", formHeader+"b1", k1)
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader(long[:n]), failing{broken.err}))
			w := httptest.NewRecorder()
			a.mux.ServeHTTP(w, r)
			(&reply{t, w.Code, w.Header(), w.Body.String()}).fails(broken.status, broken.code, httpedge.SameKey)
		}
	}
	a.want(0, 0, 0)
	a.closed(len(a.given))
	a.send(scans, whole[:end], k1).ok(201, "false")
	a.want(1, 1, 1)
	nothingLeft(t)
}

// failing is a connection that breaks.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestAFormOfAnotherSiteNeedsAKeyHeader(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{}, nil, nil)
	form := formOf("b1", usualForm...)
	for _, c := range []struct {
		name    string
		headers []string
		taken   bool
	}{
		{"no browser", nil, true},
		{"the site itself", []string{"Sec-Fetch-Site: same-origin", "Origin: http://example.com"}, true},
		{"the visitor himself", []string{"Sec-Fetch-Site: none"}, true},
		{"another site", []string{"Sec-Fetch-Site: cross-site", "Origin: https://evil.example"}, false},
		{"another site that hides its origin", []string{"Sec-Fetch-Site: cross-site", "Origin: null"}, false},
		{"another host of the site", []string{"Sec-Fetch-Site: same-site", "Origin: http://other.example.com"}, false},
		{"an old browser on the site itself", []string{"Origin: http://example.com"}, true},
		{"an old browser on another site", []string{"Origin: https://evil.example"}, false},
		{"another site after a preflight", []string{"Sec-Fetch-Site: cross-site", "Origin: https://friend.example", k1}, true},
		{"an old browser after a preflight", []string{"Origin: https://friend.example", "Idempotency-Key: "}, true},
	} {
		res := a.send("/v1/pastes", form, c.headers...)
		if c.taken {
			if res.status != 200 {
				t.Errorf("%s: %d %s", c.name, res.status, res.body)
			}
			continue
		}
		res.fails(403, "CROSS_ORIGIN", httpedge.SameKey)
	}
	// So it is for marked commands and for checks.
	a.send(scans, form, "Sec-Fetch-Site: cross-site").fails(403, "CROSS_ORIGIN", httpedge.SameKey)
	a.send("/v1/check", form, "Sec-Fetch-Site: cross-site").fails(403, "CROSS_ORIGIN", httpedge.SameKey)
	a.send(scans, form).fails(400, "IDEMPOTENCY_KEY_MISSING", httpedge.NewKey)
	// What needs a preflight by its type is not asked.
	a.do("POST", "/v1/pastes", `{"title":"t"}`, "Sec-Fetch-Site: cross-site").fails(500, "INTERNAL", httpedge.Never) // its handler finds no file
	nothingLeft(t)
}

func TestARouteThatTakesFilesTakesPlainBodiesTooAndOthersTakeNoForms(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{}, func(o *httpedge.Options[attach, attached]) {
		o.Fill = func(_ *http.Request, c *attach) error { c.Title += "!"; return nil }
	}, nil)
	route(a.rig, "POST /v1/plain", httpedge.Options[attach, attached]{})
	a.do("POST", scans, `{"title":"t"}`, k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	a.do("POST", "/v1/careless", `{"title":"t"}`, k1).fails(500, "INTERNAL", httpedge.SameKey) // its handler finds no file
	a.send("/v1/plain", formOf("b1", usualForm...), k1).fails(415, "UNSUPPORTED_MEDIA_TYPE", httpedge.SameKey)
	if res := a.send(scans, formOf("b1", usualForm...), k1).ok(201, "false"); !strings.Contains(res.body, `"t!"`) {
		t.Errorf("Fill was not asked after the form: %s", res.body)
	}
	nothingLeft(t)
}

func TestF17_ABodyCannotClaimAFileWhateverTheTagsSay(t *testing.T) {
	t.Parallel()
	for _, target := range []reflect.Type{reflect.TypeFor[attach](), reflect.TypeFor[careless]()} {
		if err := strictjson.Check(target); err != nil {
			t.Error(err)
		}
	}
	if err := strictjson.CheckXML(reflect.TypeFor[attach]()); err != nil {
		t.Error(err)
	}
	if err := strictjson.CheckXML(reflect.TypeFor[careless]()); err == nil { // no route can be made with it
		t.Error("a file without the tag can be read from XML")
	}
	a := newArchive(t, httpedge.Config{}, nil, nil)
	const claim = `{"name":"a","size":7,"sha256":"00"}`
	for _, body := range []string{
		`{"title":"t","scan":` + claim + `}`, `{"title":"t","scan":{}}`, `{"title":"t","scan":null}`, `{"title":"t","scan":"00"}`,
		`{"title":"t","more":[` + claim + `]}`, `{"title":"t","more":[null]}`, `{"title":"t","more":[{}]}`, `{"title":"t","spare":` + claim + `}`,
		`{"title":"t","fixed":[` + claim + `]}`,
	} {
		a.do("POST", "/v1/careless", body, k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
		a.send("/v1/careless", formOf("b1", commandPiece(body), usualForm[1]), k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
		var c careless
		if err := strictjson.Decode([]byte(body), &c); err == nil || !reflect.ValueOf(c).IsZero() {
			t.Errorf("%s became %v", body, c)
		}
	}
	for _, body := range []string{`{"title":"t","Scan":` + claim + `}`, `{"title":"t","-":` + claim + `}`, `{"title":"t","scan":` + claim + `}`} {
		a.do("POST", scans, body, k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	}
	for _, body := range []string{
		`<c><title>t</title><scan><size>7</size><sha256>00</sha256></scan></c>`, `<c><title>t</title><scan>00</scan></c>`, `<c><title>t</title><scan/></c>`,
	} {
		var c careless
		if err := strictjson.DecodeXML([]byte(body), "c", &c); err == nil || !reflect.ValueOf(c).IsZero() {
			t.Errorf("%s became %v", body, c)
		}
	}
	a.want(0, 0, 0)
	// The field without the tag is in the fingerprint like the one that has it.
	a.send("/v1/careless", formOf("b1", usualForm...), k1).ok(200, "false")
	a.send("/v1/careless", formOf("b1", usualForm[0], filePiece("scan", "b.pdf", "content")), k1).ok(200, "true")
	a.send("/v1/careless", formOf("b1", usualForm[0], filePiece("scan", "a.pdf", "Content")), k1).fails(409, "IDEMPOTENCY_KEY_CONFLICT", httpedge.Never)
	a.want(1, 0, 1)
}

func TestF25_TheRawHashOfAFormIsThatOfItsCommand(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{HashBodies: true}, nil, nil)
	a.send(scans, formOf("b1", usualForm...), k1).ok(201, "false")
	a.do("POST", scans, formOf("b2", usualForm...), formHeader+"b2", k1).ok(201, "true")
	a.do("POST", scans, formOf("b2", commandPiece(`{ "title":"t"}`), usualForm[1]), formHeader+"b2", k1).ok(201, "true")
	var hashes []string
	for _, e := range a.seen.all() {
		hashes = append(hashes, e.request.BodySHA256())
	}
	one := sumOf(`{"title":"t"}`)
	same(t, "hashes", hashes, []string{one, one, sumOf(`{ "title":"t"}`)})
}

func TestACheckTakesFilesAndKeepsNothing(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{}, nil, nil)
	res := a.send("/v1/check", formOf("b1", usualForm...))
	if res.status != 200 || !strings.Contains(res.body, sumOf("content")) {
		t.Errorf("%d %s", res.status, res.body)
	}
	a.send("/v1/check", formOf("b1", usualForm[0])).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	a.send("/v1/check", formOf("b1", usualForm[0], filePiece("scan", "a", strings.Repeat("x", 101)))).fails(413, "FILE_TOO_LARGE", httpedge.SameKey)
	a.want(0, 0, 0)
	a.closed(1)
	nothingLeft(t)
}

func TestOptionsOfFilesThatContradictThemselvesAreRefusedAtStart(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{}, nil, nil)
	o := httpedge.Options[attach, attached]{EmptyBody: true, File: a.put, FileLimit: -1}
	_, err := httpedge.Command(a.edge, a.bus, "POST /x", o)
	_, checkErr := httpedge.Check(a.edge, a.bus, "POST /x", o)
	for _, err := range []error{err, checkErr} {
		if err == nil || !strings.Contains(err.Error(), "FileLimit is -1") || !strings.Contains(err.Error(), "File and EmptyBody exclude each other") {
			t.Errorf("got %v", err)
		}
	}
}

func TestAFormThatAMiddlewareHasReadIsAFaultOfTheService(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{}, nil, nil)
	r := request("POST", scans, formOf("b1", usualForm...), formHeader+"b1", k1)
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	a.mux.ServeHTTP(w, r)
	(&reply{t, w.Code, w.Header(), w.Body.String()}).fails(500, "INTERNAL", httpedge.SameKey)
	a.want(0, 0, 0)
}

func TestFilesAreGoneAfterAPanic(t *testing.T) {
	t.Parallel()
	long := formOf("b1", commandPiece(`{"title":"t"}`), filePiece("scan", "a", strings.Repeat("x", 2<<20)))
	boom := func() { panic("with the content of a file") }
	places := map[string]struct {
		change func(*httpedge.Options[attach, attached])
		handle func(context.Context, attach) (attached, error)
	}{
		"the handler": {nil, func(context.Context, attach) (attached, error) { boom(); return attached{}, nil }},
		"Fill": {func(o *httpedge.Options[attach, attached]) {
			o.Fill = func(*http.Request, *attach) error { boom(); return nil }
		}, nil},
		"File": {func(o *httpedge.Options[attach, attached]) {
			put := o.File
			o.File = func(c *attach, field string, f requestctx.File) error { defer boom(); return put(c, field, f) }
		}, nil},
		"Body": {func(o *httpedge.Options[attach, attached]) {
			o.Body = func(*requestctx.Request, attached) any { boom(); return nil }
		}, nil},
	}
	for name, place := range places {
		a := newArchive(t, httpedge.Config{}, place.change, place.handle)
		if res := a.send(scans, long, k1); res.status != 500 {
			t.Errorf("%s: %d %s", name, res.status, res.body)
		}
		a.closed(1)
	}
	a := newArchive(t, httpedge.Config{}, nil, func(context.Context, attach) (attached, error) { return attached{}, errForbidden })
	a.send(scans, long, k1).fails(500, "INTERNAL", httpedge.SameKey)
	a.closed(1)
	nothingLeft(t)
}

func TestF17_AClientThatHangsUpAfterItsFormGetsItsWorkDoneOnce(t *testing.T) {
	t.Parallel()
	gone, reading := make(chan struct{}), make(chan struct{})
	var a *archive
	a = newArchive(t, httpedge.Config{}, nil, func(ctx context.Context, c attach) (attached, error) {
		close(reading)
		<-gone
		if err := a.mem.Insert(ctx, c.Title); err != nil {
			return attached{}, err
		}
		return readAll(c.Title, c.Scan)
	})
	began, ended := make(chan context.Context, 1), make(chan struct{})
	s := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		began <- r.Context()
		a.mux.ServeHTTP(w, r)
	}))
	long := formOf("b1", commandPiece(`{"title":"t"}`), filePiece("scan", "a", strings.Repeat("x", 2<<20)))
	ctx, hangUp := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", s.URL+scans, strings.NewReader(long))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = request("POST", "/", "", formHeader+"b1", k1).Header
	done := make(chan error)
	go func() {
		res, err := s.Client().Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		done <- err
	}()
	<-reading
	// Meanwhile another try is told so, and reads nothing.
	a.send(scans, long, k1).fails(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", httpedge.SameKey)
	hangUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("the client got %v", err)
	}
	<-(<-began).Done() // the server knows
	close(gone)
	<-ended
	a.closed(2)
	if res := a.send(scans, long, k1).ok(201, "true"); !strings.Contains(res.body, sumOf(strings.Repeat("x", 2<<20))) {
		t.Errorf("the handler has read something else: %s", res.body)
	}
	a.want(1, 1, 1)
	nothingLeft(t)
}

func TestTriesOfOneUploadAtTheSameTimeRunOnce(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{}, nil, nil)
	s := server(t, a.mux)
	long := formOf("b1", commandPiece(`{"title":"t"}`), filePiece("scan", "a", strings.Repeat("x", 1<<20+1)))
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for {
				req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+scans, strings.NewReader(long))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header = request("POST", "/", "", formHeader+"b1", k1).Header
				res, err := s.Client().Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = io.Copy(io.Discard, res.Body)
				if err = errors.Join(err, res.Body.Close()); err != nil {
					t.Error(err)
				}
				if res.StatusCode == 409 {
					continue
				}
				if res.StatusCode != 201 {
					t.Errorf("status %d", res.StatusCode)
				}
				return
			}
		})
	}
	all.Wait()
	a.want(1, 1, 1)
	nothingLeft(t)
}

func TestATooLongUploadGetsItsAnswerOverTheNetwork(t *testing.T) {
	t.Parallel()
	a := newArchive(t, httpedge.Config{}, func(o *httpedge.Options[attach, attached]) { o.FileLimit = 10 }, nil)
	s := server(t, a.mux)
	req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+scans, strings.NewReader(formOf("b1", usualForm[0], filePiece("scan", "a", strings.Repeat("x", 100<<10)))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = request("POST", "/", "", formHeader+"b1", k1).Header
	answer, body := exchange(t, s.Client(), req)
	if answer.StatusCode != 413 || !strings.Contains(body, "FILE_TOO_LARGE") {
		t.Errorf("%d %s", answer.StatusCode, body)
	}
	a.want(0, 0, 0)
	nothingLeft(t)
}

// zeros gives n zero bytes, and counts.
type zeros struct{ left, read int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left, 32<<10)
	clear(p[:n])
	z.left -= n
	z.read += n
	return int(n), nil
}

// It is not parallel: what others allocate meanwhile would count.
func TestF17_ALongFileIsStreamed(t *testing.T) {
	const size = 24 << 20
	a := newArchive(t, httpedge.Config{}, nil, nil)
	upload := func(key string) int64 {
		file := &zeros{left: size}
		head, tail, _ := strings.Cut(formOf("b1", usualForm[0], filePiece("scan", "a", "|")), "|")
		r := request("POST", scans, "", formHeader+"b1", "Idempotency-Key: "+key)
		r.Body = io.NopCloser(io.MultiReader(strings.NewReader(head), file, strings.NewReader(tail)))
		w := httptest.NewRecorder()
		a.mux.ServeHTTP(w, r)
		(&reply{t, w.Code, w.Header(), w.Body.String()}).ok(201, "false")
		return file.read
	}
	upload("warm-up-1")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	same(t, "bytes read", upload(key), size)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > size/2 {
		t.Errorf("%d bytes were allocated for a file of %d", grown, size)
	}
	a.closed(2)
	nothingLeft(t)
}

// It is not parallel: it takes the directory for temporary files away.
func TestADiskThatFailsIsAFaultOfTheServiceAndLeavesTheKeyUnspent(t *testing.T) {
	a := newArchive(t, httpedge.Config{}, nil, nil)
	long := formOf("b1", usualForm[0], filePiece("scan", "a", strings.Repeat("x", 2<<20)))
	dir := t.TempDir()
	t.Run("away", func(t *testing.T) {
		t.Setenv("TMPDIR", filepath.Join(dir, "none"))
		t.Setenv("TMP", filepath.Join(dir, "none"))
		res := a.send(scans, long, k1)
		res.fails(500, "INTERNAL", httpedge.SameKey)
		if strings.Contains(res.body+a.log.String(), dir) {
			t.Errorf("a path was told: %s %s", res.body, a.log)
		}
		a.want(0, 0, 0)
		a.send(scans, formOf("b1", usualForm...), "Idempotency-Key: short-file").ok(201, "false") // needs no disk
	})
	t.Run("back", func(t *testing.T) {
		t.Setenv("TMPDIR", dir)
		t.Setenv("TMP", dir)
		a.send(scans, long, k1).ok(201, "false")
		if left := leftovers(); len(left) > 0 {
			t.Errorf("files are left behind: %v", left)
		}
	})
}

func FuzzMultipart(f *testing.F) {
	c, scan := usualForm[0], usualForm[1]
	big := filePiece("scan", "a", "~") // ~ becomes what does not stay in memory
	for _, form := range []string{
		"", "--b1--", formOf("b1", c, scan), formOf("b1", c, big), formOf("b1", scan, c), formOf("b1", c, big, c), formOf("b1", c, big)[:140],
		formOf("b1", c, big, filePiece("more", "../../etc/passwd", "")), formOf("b1", c, big, piece{"x\r\n", ""}), formOf("b1", c, filePiece("other", "x", "~")),
		"x\r\n" + formOf("b1", c, scan) + "x", strings.ReplaceAll(formOf("b1", c, big), "\r\n", "\n"),
		formOf("b1", c, piece{"Content-Disposition: form-data; name=scan; filename*=UTF-8''%e2%80%ae\r\nContent-Type: ;\r\n", "~"}),
	} {
		f.Add(form, "b1")
	}
	filler := strings.Repeat("x", 1<<20+1)
	f.Fuzz(func(t *testing.T, form, boundary string) {
		form = strings.Replace(form, "~", filler, 1)
		a := newArchive(t, httpedge.Config{}, func(o *httpedge.Options[attach, attached]) { o.FileLimit = 1<<20 + 500 }, nil)
		r := request("POST", scans, form, k1)
		r.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
		w := httptest.NewRecorder()
		a.mux.ServeHTTP(w, r)
		switch w.Code {
		case 201:
			a.want(1, 1, 1)
			again := a.do("POST", scans, form, "Content-Type: multipart/form-data; boundary="+boundary, k1)
			if again.status != 201 || again.header.Get("Idempotency-Replayed") != "true" || !bytes.Equal([]byte(again.body), w.Body.Bytes()) {
				t.Errorf("the same form again: %d %s", again.status, again.body)
			}
		case 400, 413, 415:
			a.want(0, 0, 0)
		default:
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
		a.closed(len(a.given))
		if left := leftovers(); len(left) > 0 {
			t.Errorf("files are left behind: %v", left)
		}
	})
}
