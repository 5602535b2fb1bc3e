package requestctx_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tekil-go/tekil/requestctx"
)

func fileOf(name, contentType, content string) requestctx.File {
	return requestctx.NewFile(name, contentType, strings.NewReader(content), int64(len(content)), sha256.Sum256([]byte(content)))
}

func ExampleNewFile() {
	// A test of a handler makes the file that an edge would have received.
	data := []byte("%PDF-1.7 ...")
	f := requestctx.NewFile(`C:\scans\contract.pdf`, "application/pdf", bytes.NewReader(data), int64(len(data)), sha256.Sum256(data))

	fmt.Println(f.Name(), f.ContentType(), f.Size(), f.SHA256()[:8])
	// Output: contract.pdf application/pdf 12 cd98c5bc
}

func ExampleFile_Open() {
	handler := func(f requestctx.File) error {
		in, err := f.Open()
		if err != nil {
			return err
		}
		defer func() { _ = in.Close() }()
		text, err := io.ReadAll(in)
		fmt.Printf("%s %q\n", f.Name(), text)
		return err
	}
	data := []byte("a;b\n")
	if err := handler(requestctx.NewFile("rows.csv", "text/csv", bytes.NewReader(data), 4, sha256.Sum256(data))); err != nil {
		fmt.Println(err)
	}
	// Output: rows.csv "a;b\n"
}

func ExampleFile_IsZero() {
	var none requestctx.File
	fmt.Println(none.IsZero())
	// Output: true
}

func ExampleFile_MarshalJSON() {
	data := []byte("a;b\n")
	text, err := json.Marshal(requestctx.NewFile("salary of jane.csv", "text/csv", bytes.NewReader(data), 4, sha256.Sum256(data)))
	fmt.Println(string(text), err)
	// Output: {"sha256":"9a8be2eb1604c06722f17a9bbdb1160123efa0dcf87979013ead941593977af2","size":4} <nil>
}

func ExampleFile_UnmarshalJSON() {
	var f requestctx.File
	fmt.Println(json.Unmarshal([]byte(`{"sha256":"00","size":4}`), &f), f.IsZero())
	// Output: requestctx: a file cannot be read from JSON; send it as a part of its own true
}

func TestTheNameOfAFileIsNoPathAndHoldsNoControlCharacters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"scan.pdf", "scan.pdf"},
		{"/etc/passwd", "passwd"},
		{`C:\Users\jane\scan.pdf`, "scan.pdf"},
		{`..\..\scan.pdf`, "scan.pdf"},
		{"a/b/", "b"},
		{"", ""},
		{".", ""},
		{"..", ""},
		{"a/..", ""},
		{"a/.. ", ""},
		{"a/.\x00.", ""},
		{"/", ""},
		{`\`, ""},
		{"a\x00b\r\nc\x7f\u0085.pdf", "abc.pdf"},
		{"scan\u202efdp.exe", "scanfdp.exe"},
		{"a\u2028b", "ab"},
		{"a\xffb", "ab"},
		{" scan.pdf ", "scan.pdf"},
		{"Ölçü.pdf", "Ölçü.pdf"},
		{strings.Repeat("x", 300), strings.Repeat("x", 255)},
		{strings.Repeat("ö", 200), strings.Repeat("ö", 127)},
	} {
		if got := fileOf(c.in, "", "x").Name(); got != c.want || !utf8.ValidString(got) {
			t.Errorf("%q became %q, want %q", c.in, got, c.want)
		}
	}
}

func TestF17_AFileSaysItsSizeAndItsHashAndNothingElse(t *testing.T) {
	t.Parallel()
	a, b := fileOf("a.pdf", "application/pdf", "same"), fileOf("b.txt", "text/plain", "same")
	first, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	// Stored fingerprints hang on this text: it must not change.
	const golden = `{"sha256":"0967115f2813a3541eaef77de9d9d5773f1c0c04314b0bbfe4ff3b3b1c55b5d5","size":4}`
	if string(first) != golden {
		t.Errorf("got %s, want %s", first, golden)
	}
	if second, err := json.Marshal(b); err != nil || !bytes.Equal(first, second) {
		t.Errorf("the same content under another name gave %s, %v", second, err)
	}
	if other, err := json.Marshal(fileOf("a.pdf", "application/pdf", "Same")); err != nil || bytes.Equal(first, other) {
		t.Errorf("another content gave %s, %v", other, err)
	}
	if empty, err := json.Marshal(fileOf("", "", "")); err != nil || !strings.Contains(string(empty), `"size":0`) {
		t.Errorf("an empty file gave %s, %v", empty, err)
	}
	if none, err := json.Marshal(requestctx.File{}); err != nil || string(none) != "null" {
		t.Errorf("no file gave %s, %v", none, err)
	}
}

func TestF17_NoBodyCanClaimAFile(t *testing.T) {
	t.Parallel()
	const claim = `{"name":"a.pdf","Name":"a.pdf","size":4,"Size":4,"sha256":"00","SHA256":"00"}`
	var untagged struct{ Scan requestctx.File }
	if err := json.Unmarshal([]byte(`{"Scan":`+claim+`}`), &untagged); err == nil || !untagged.Scan.IsZero() {
		t.Errorf("a field without the tag: %v, %v", err, untagged)
	}
	var pointer struct{ Scan *requestctx.File }
	if err := json.Unmarshal([]byte(`{"Scan":`+claim+`}`), &pointer); err == nil {
		t.Errorf("a pointer without the tag: %v", pointer)
	}
	var list struct{ Scans []requestctx.File }
	for _, items := range []string{"[" + claim + "]", "[{}]", "[null]", `[""]`} {
		if err := json.Unmarshal([]byte(`{"Scans":`+items+`}`), &list); err == nil {
			t.Errorf("a list of %s was taken: %v", items, list)
		}
	}
	var tagged struct {
		Scan requestctx.File `json:"-"`
	}
	if err := json.Unmarshal([]byte(`{"Scan":`+claim+`,"-":`+claim+`}`), &tagged); err != nil || !tagged.Scan.IsZero() {
		t.Errorf("a field with the tag: %v, %v", err, tagged)
	}
	var format struct{ Scan requestctx.File } // of an application's own codec
	err := xml.Unmarshal([]byte(`<x><Scan name="a" Size="4" sha256="00"><SHA256>00</SHA256><sha256>00</sha256><Size>4</Size></Scan></x>`), &format)
	if !format.Scan.IsZero() {
		t.Errorf("a codec set %v, %v", format, err)
	}
}

// gone is content that is no longer there.
type gone struct{}

func (gone) ReadAt([]byte, int64) (int, error) { return 0, fs.ErrClosed }

func TestOpenGivesTheContentFromItsStartEachTime(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "some content"} {
		f := fileOf("a", "", content)
		for range 2 {
			in, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(in)
			if err != nil || string(got) != content {
				t.Errorf("got %q, %v; want %q", got, err, content)
			}
			if _, err = in.Seek(int64(len(content)/2), io.SeekStart); err != nil {
				t.Fatal(err)
			}
			if got, err = io.ReadAll(in); err != nil || string(got) != content[len(content)/2:] {
				t.Errorf("after seeking: got %q, %v", got, err)
			}
			if err := errors.Join(in.Close(), in.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestOpenFailsWhereThereIsNoContent(t *testing.T) {
	t.Parallel()
	if _, err := (requestctx.File{}).Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the zero File: %v", err)
	}
	if _, err := requestctx.NewFile("a", "", gone{}, 4, [32]byte{}).Open(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("content that is gone: %v", err)
	}
}

func TestFilesCanBeCompared(t *testing.T) {
	t.Parallel()
	type command struct{ Scan requestctx.File }
	f := fileOf("a", "", "x")
	if (command{f}) != (command{f}) || f == (requestctx.File{}) || f.IsZero() || fileOf("", "", "").IsZero() {
		t.Error("files do not compare by what they are")
	}
}
