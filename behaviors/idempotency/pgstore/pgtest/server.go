package pgtest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	envServer = "TEKIL_TEST_POSTGRES"
	envFsync  = "TEKIL_TEST_POSTGRES_FSYNC"
)

// errNoServer is the sentence that helps. What was tried stands behind it.
var errNoServer = errors.New("pgtest: these tests need PostgreSQL and never do without: install PostgreSQL 14 or newer " +
	"(on Debian: apt-get install postgresql), or set " + envServer + " to the URL of a server where schemas may be created")

// serverURL finds or starts the server and holds it until the end of the test.
func serverURL(tb TB) (address string, private bool) {
	tb.Helper()
	if address := os.Getenv(envServer); address != "" {
		return address, false
	}
	fsync := false
	switch v := os.Getenv(envFsync); v {
	case "", "off":
	case "on":
		fsync = true
	default:
		tb.Fatalf("pgtest: %s is %q and should be on or off", envFsync, v)
	}
	binaries, err := findBinaries()
	if err != nil {
		tb.Fatalf("%v (%v)", errNoServer, err)
	}
	address, release, err := newCluster(os.TempDir(), binaries, fsync).join()
	if err != nil {
		tb.Fatalf("pgtest: start a private PostgreSQL with the binaries in %s: %v\n%v", binaries, err, errNoServer)
	}
	tb.Cleanup(release)
	return address, true
}

// packaged is where the common packages put PostgreSQL's binaries.
func packaged() []string {
	return []string{
		"/usr/lib/postgresql/*/bin",                           // Debian, Ubuntu
		"/usr/pgsql-*/bin",                                    // PostgreSQL's own RPMs
		"/usr/local/pgsql/bin",                                // make install
		"/opt/homebrew/opt/postgresql*/bin",                   // Homebrew on Apple's processors
		"/usr/local/opt/postgresql*/bin",                      // Homebrew on Intel's
		"/Applications/Postgres.app/Contents/Versions/*/bin/", // Postgres.app
	}
}

// findBinaries is the directory of initdb and postgres.
func findBinaries() (string, error) {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		// A link in PATH is followed, because initdb looks for its neighbours where it really is.
		if target, err := filepath.EvalSymlinks(filepath.Join(dir, "initdb")); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	for _, pattern := range packaged() {
		found, _ := filepath.Glob(pattern)
		slices.SortStableFunc(found, newestFirst)
		dirs = append(dirs, found...)
	}
	if i := slices.IndexFunc(dirs, complete); i >= 0 {
		return dirs[i], nil
	}
	return download(os.TempDir(), embeddedpostgres.DefaultConfig())
}

func complete(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

var number = regexp.MustCompile(`\d+(\.\d+)?`)

// newestFirst sorts directories by the last number in their names, which is PostgreSQL's version where there is one.
func newestFirst(a, b string) int {
	version := func(dir string) float64 {
		all := number.FindAllString(dir, -1)
		if len(all) == 0 {
			return 0
		}
		v, _ := strconv.ParseFloat(all[len(all)-1], 64)
		return v
	}
	return cmp.Compare(version(b), version(a))
}

// download has embedded-postgres fetch PostgreSQL into a directory below temp, once, and returns where the binaries
// are. That library has no call that only fetches, so it is let start a server of its own and stop it. As root its
// initdb refuses, when all that is wanted here is already unpacked: what counts is whether the binaries are there.
func download(temp string, config embeddedpostgres.Config) (string, error) {
	home := filepath.Join(temp, fmt.Sprintf("tekil-pgtest-%d-binaries", os.Getuid()))
	if complete(filepath.Join(home, "bin")) && ownDirectory(home) == nil {
		return filepath.Join(home, "bin"), nil
	}
	// Several processes may do this at once. Each unpacks for itself, and the first one to finish is the one that counts.
	work, err := os.MkdirTemp(temp, "tekil-pgtest-download-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	port, err := freePort()
	if err != nil {
		return "", err
	}
	var log bytes.Buffer
	unpacked := filepath.Join(work, "unpacked")
	server := embeddedpostgres.NewDatabase(config.BinariesPath(unpacked).RuntimePath(filepath.Join(work, "run")).
		CachePath(filepath.Join(work, "archive")).Port(uint32(port)).Logger(&log))
	if err = server.Start(); err == nil {
		err = server.Stop()
	}
	if !complete(filepath.Join(unpacked, "bin")) {
		return "", fmt.Errorf("there are no binaries on this machine, and to download them failed: %w", errors.Join(err, errIncomplete))
	}
	if err := readable(unpacked); err != nil {
		return "", err
	}
	if err = os.Rename(unpacked, home); err != nil && !complete(filepath.Join(home, "bin")) {
		// Nobody was faster: a cleaner of temporary files has left half of what was there.
		if err = os.RemoveAll(home); err == nil {
			err = os.Rename(unpacked, home)
		}
		if err != nil {
			return "", err
		}
	}
	return filepath.Join(home, "bin"), ownDirectory(home)
}

var errIncomplete = errors.New("initdb and postgres are not in what came")

// readable lets the account that the server runs under read and run what the caller can.
func readable(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		own := info.Mode().Perm() & 0o500
		return os.Chmod(path, info.Mode().Perm()|own>>3|own>>6)
	})
}

// newCluster is the private cluster of this user for these binaries. Other binaries, or another setting, are another
// cluster in another directory.
func newCluster(temp, binaries string, fsync bool) cluster {
	identity := fmt.Sprintln(clusterFormat, binaries, fsync)
	if info, err := os.Stat(filepath.Join(binaries, "postgres")); err == nil {
		identity += fmt.Sprintln(info.Size(), info.ModTime().UnixNano())
	}
	sum := sha256.Sum256([]byte(identity))
	return cluster{
		Dir:      filepath.Join(temp, fmt.Sprintf("tekil-pgtest-%d-%x", os.Getuid(), sum[:4])),
		Binaries: binaries,
		Fsync:    fsync,
	}
}

// clusterFormat is part of a cluster's identity, so that test binaries of two versions of this package, which may not
// agree about the files in the directory, do not meet there.
const clusterFormat = "2"

// cluster is a private PostgreSQL that all test processes of one user share. It is what the keeper is told.
type cluster struct {
	Dir      string // holds all of it, and is removed with the server
	Binaries string
	Fsync    bool
}
