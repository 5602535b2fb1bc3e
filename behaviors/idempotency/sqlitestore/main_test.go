package sqlitestore_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

// Environment of a second process, which is this test program again.
const (
	taskEnv = "TEKIL_SQLITESTORE_TASK"
	fileEnv = "TEKIL_SQLITESTORE_FILE"
)

func TestMain(m *testing.M) {
	if task := os.Getenv(taskEnv); task != "" {
		if err := child(task, os.Getenv(fileEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	registerMoments()
	goleak.VerifyTestMain(m)
}

// child is the second process's main function.
func child(task, path string) error {
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(path))
	if err != nil {
		return err
	}
	defer db.Close()
	switch {
	case task == "migrate":
		return sqlitestore.Migrate(context.Background(), db)
	case strings.HasPrefix(task, "leased"):
		return chargeAll(context.Background(), db, task)
	case strings.HasPrefix(task, "die"):
		return die(context.Background(), db, task)
	}
	return payAll(context.Background(), db, task)
}

// startChild starts a second process on a file. The function it gives waits for the end and demands success.
func startChild(t *testing.T, task, path string) (wait func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^$")
	cmd.Env = append(os.Environ(), taskEnv+"="+task, fileEnv+"="+path)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the process %q: %v\n%s", task, err, stderr.String())
		}
	}
}

// Each process that pays sends each of its keys, and each of the shared ones, twice at once.
const ownKeys, sharedKeys = 10, 10

// payAll sends commands with keys of this process's own and with keys that other processes use as well.
func payAll(ctx context.Context, db *sql.DB, name string) error {
	handle, err := serve(sqlitestore.New(db), readThenWrite(db))
	if err != nil {
		return err
	}
	return sendAll(name, func(key string) error {
		_, _, err := send(ctx, handle, key, pay{Note: key})
		return err
	})
}

// sendAll sends with each key twice at once.
func sendAll(name string, send func(key string) error) error {
	var keys []string
	for i := range ownKeys {
		keys = append(keys, fmt.Sprintf("%s-key-%d", name, i))
	}
	for i := range sharedKeys {
		keys = append(keys, fmt.Sprintf("shared-key-%d", i))
	}
	var wg sync.WaitGroup
	failed := make([]string, 2*len(keys))
	for i := range failed {
		wg.Go(func() {
			if err := send(keys[i/2]); err != nil {
				failed[i] = err.Error()
			}
		})
	}
	wg.Wait()
	if all := strings.TrimSpace(strings.Join(failed, "\n")); all != "" {
		return fmt.Errorf("%s: %s", name, all)
	}
	return nil
}
