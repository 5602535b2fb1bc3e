package pgtest

import (
	"archive/zip"
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestNewerBinariesComeFirst(t *testing.T) {
	t.Parallel()
	dirs := []string{"/usr/lib/postgresql/9.6/bin", "/opt/homebrew/opt/postgresql/bin", "/usr/lib/postgresql/15/bin",
		"/opt/homebrew/opt/postgresql@17/bin", "/usr/lib/postgresql/9.5/bin"}
	slices.SortStableFunc(dirs, newestFirst)
	want := []string{"/opt/homebrew/opt/postgresql@17/bin", "/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/9.6/bin",
		"/usr/lib/postgresql/9.5/bin", "/opt/homebrew/opt/postgresql/bin"}
	if !slices.Equal(dirs, want) {
		t.Errorf("order %q", dirs)
	}
}

// removeLogs removes what embedded-postgres leaves in the directory for temporary files.
func removeLogs(t *testing.T) {
	t.Helper()
	logs := func() []string {
		found, err := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	before := logs()
	t.Cleanup(func() {
		for _, path := range logs() {
			if !slices.Contains(before, path) {
				_ = os.Remove(path)
			}
		}
	})
}

// repository is a server of embedded-postgres's archives that has the one in testdata, whose programs do nothing but fail.
func repository(t *testing.T) *httptest.Server {
	t.Helper()
	archive, err := os.ReadFile("testdata/binaries.txz")
	if err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	w := zip.NewWriter(&jar)
	entry, err := w.Create("postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := entry.Write(archive); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, ".jar") {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(jar.Bytes())
	}))
	t.Cleanup(server.Close)
	return server
}

func TestBinariesAreDownloadedOnceThoughTheirServerDoesNotStart(t *testing.T) {
	t.Parallel()
	removeLogs(t)
	temp := t.TempDir()
	server := repository(t)
	config := embeddedpostgres.DefaultConfig().BinaryRepositoryURL(server.URL)
	bin, err := download(temp, config)
	if err != nil {
		t.Fatal(err)
	}
	if !complete(bin) {
		t.Errorf("there are no binaries in %s", bin)
	}
	for name, want := range map[string]os.FileMode{"": 0o755, "initdb": 0o755} { // 0700 in the archive
		info, err := os.Stat(filepath.Join(bin, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got&want != want {
			t.Errorf("%s has mode %o, want %o", info.Name(), got, want)
		}
	}
	server.Close()
	if again, err := download(temp, config); err != nil || again != bin {
		t.Errorf("the second time: %q, %v", again, err)
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "*download*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestHalfADownloadIsReplaced(t *testing.T) {
	t.Parallel()
	removeLogs(t)
	temp := t.TempDir()
	half := filepath.Join(temp, fmt.Sprintf("tekil-pgtest-%d-binaries", os.Getuid()), "bin")
	if err := os.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, "initdb"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	bin, err := download(temp, embeddedpostgres.DefaultConfig().BinaryRepositoryURL(repository(t).URL))
	if err != nil || bin != half || !complete(bin) {
		t.Errorf("binaries in %q, %v", bin, err)
	}
}

func TestADownloadThatFailsSaysSo(t *testing.T) {
	t.Parallel()
	removeLogs(t)
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	temp := t.TempDir()
	if _, err := download(temp, embeddedpostgres.DefaultConfig().BinaryRepositoryURL(server.URL)); err == nil ||
		!strings.Contains(err.Error(), "to download them failed") {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(temp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOtherBinariesOrSettingsAreAnotherCluster(t *testing.T) {
	t.Parallel()
	a := newCluster("/tmp", "/a/bin", false)
	if a != newCluster("/tmp", "/a/bin", false) {
		t.Error("the same is not the same")
	}
	for _, b := range []cluster{newCluster("/tmp", "/b/bin", false), newCluster("/tmp", "/a/bin", true)} {
		if a.Dir == b.Dir {
			t.Errorf("%v and %v meet", a, b)
		}
	}
}

func TestTheAddressOpensTheSchema(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://u:secret@h/db":                            "-csearch_path=s",
		"postgresql://u:secret@h/db?sslmode=require":          "-csearch_path=s",
		"postgres://h/db?options=-c%20work_mem%3D1MB":         "-c work_mem=1MB -csearch_path=s",
		"postgres://h/db?application_name=x&pool_max_conns=3": "-csearch_path=s",
		"host=h dbname=db":                                    "-csearch_path=s",
	} {
		got, err := withSchema(address, "s")
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		config, err := pgconn.ParseConfig(got)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if config.Host != "h" || config.Database != "db" || config.RuntimeParams["options"] != want ||
			config.RuntimeParams["application_name"] != "s" {
			t.Errorf("%s became %s", address, got)
		}
		if strings.Contains(got, "+") {
			t.Errorf("%s: libpq takes a plus for a plus: %s", address, got)
		}
	}
}

func TestAnAddressThatIsNoURLDoesNotGiveItsPasswordAway(t *testing.T) {
	t.Parallel()
	if _, err := withSchema("postgres://u:sec%zzret@h/db", "s"); err == nil || strings.Contains(err.Error(), "zz") {
		t.Errorf("error %v", err)
	}
}

func TestTheAddressThroughAProxyKeepsTheSession(t *testing.T) {
	t.Parallel()
	config, err := pgconn.ParseConfig("postgres://u:p%40ss%2F@h:1/my%20db?sslmode=require&options=-csearch_path%3Ds&application_name=s")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgconn.ParseConfig(through(config, "127.0.0.1:2"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Host != "127.0.0.1" || got.Port != 2 || got.User != "u" || got.Password != "p@ss/" || got.Database != "my db" ||
		got.TLSConfig != nil || got.RuntimeParams["options"] != "-csearch_path=s" || got.RuntimeParams["application_name"] != "s" {
		t.Errorf("config %+v", got)
	}
}

func TestASchemasNameIsUniqueShortAndSortsByAge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	test := "TestX06_ADroppedCommitNeverReachesTheServer/with_a_name;_that's_\"long\"_Ünïcode"
	a, b := schemaName(test, now), schemaName(test, now)
	if a == b {
		t.Errorf("two schemas are called %s", a)
	}
	if len(a) > 63 || strings.Trim(a, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		t.Errorf("the name is %s", a)
	}
	if later := schemaName(test, now.Add(time.Second)); later <= a || later <= b {
		t.Errorf("%s does not come after %s and %s", later, a, b)
	}
}

func TestAPoolWhoseConnectionIsNotGivenBackIsNoHang(t *testing.T) {
	t.Parallel()
	config := Open(t).PoolConfig()
	pool := NewPool(t, config)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if closeWithin(pool, time.Millisecond) {
		t.Error("the pool was closed all the same")
	}
	conn.Release()
	if !closeWithin(pool, closeTimeout) {
		t.Error("the pool was not closed")
	}
}

// Nothing that a client sends makes the proxy panic, or read or keep more than was sent.
func FuzzClientFrames(f *testing.F) {
	f.Add([]byte("Q\x00\x00\x00\x0bcommit\x00"))
	f.Add([]byte("P\x00\x00\x00\x0fs\x00commit\x00\x00\x00B\x00\x00\x00\x0d\x00s\x00\x00\x00\x00\x00\x00\x00" +
		"E\x00\x00\x00\x09\x00\x00\x00\x00\x00S\x00\x00\x00\x04"))
	f.Add([]byte("S\x00\x00\x00\x03"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		l := &link{statements: map[string]string{}, portals: map[string]string{}}
		in := bufio.NewReader(bytes.NewReader(sent))
		read := 0
		for {
			kind, frame, err := readFrame(in)
			if err != nil {
				return
			}
			if read += len(frame); read > len(sent) || !bytes.Equal(frame, sent[read-len(frame):read]) {
				t.Fatalf("frame %q is not what was sent", frame)
			}
			sql, executes := l.note(kind, frame[5:])
			if !executes && sql != "" {
				t.Fatalf("%q is not executed and has a text", frame)
			}
			_ = IsCommit(sql)
		}
	})
}
