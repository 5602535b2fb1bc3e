package client

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Store keeps intents over the life of a program. Its place for an intent is the pair of Intent and DraftID. It must be safe for
// concurrent use, by several processes where several send the same intents. What it holds are keys: keep it private.
type Store interface {
	// Keep stores r unless its place is taken, and gives the record that stands there and whether it was found: r or the earlier
	// one. Of several calls at once one wins, and all give that one's record. When it returns, the record survives the end of the
	// process.
	Keep(ctx context.Context, r Record) (stands Record, found bool, err error)
	// Remove deletes the record in r's place if it has r's key. That there is none is no error.
	Remove(ctx context.Context, r Record) error
}

// rounds is how often a store tries again when a record is removed while it looks.
const rounds = 5

var errUnsteady = errors.New("client: the intent is stored and removed by others all the time")

// Files is a Store in a folder: one file per intent, which only its owner may read. A file is there in full or not at all, whenever
// the process is killed. It needs a file system with hard links. Safe for concurrent use, by several processes too, but for one
// gap: a Remove may delete a record that another process has put in the place of the removed one within the same microseconds. Processes
// that end and begin intents of one name and draft at once are better served by [SQL].
type Files struct{ dir string }

// removing keeps a Remove, which looks and then deletes, apart from what else this process does to files.
var removing sync.RWMutex

// NewFiles makes the folder dir if it is not there, for its owner alone, and removes from it what processes have left that were
// killed more than an hour ago.
func NewFiles(dir string) (*Files, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("client: the folder of the intents: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("client: the folder of the intents: %w", err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), "new-") && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return &Files{dir}, nil
}

func (s *Files) file(r Record) string {
	return filepath.Join(s.dir, Derive("file/1", r.Intent, r.DraftID)+".json")
}

// Keep is as [Store] says.
func (s *Files) Keep(ctx context.Context, r Record) (stands Record, found bool, err error) {
	removing.RLock()
	defer removing.RUnlock()
	for range rounds {
		if err := ctx.Err(); err != nil {
			return Record{}, false, err
		}
		stands, err := s.read(r)
		if !errors.Is(err, fs.ErrNotExist) {
			return stands, true, err
		}
		if err = s.write(r); !errors.Is(err, fs.ErrExist) {
			return r, false, err
		}
	}
	return Record{}, false, errUnsteady
}

func (s *Files) read(r Record) (found Record, err error) {
	data, err := os.ReadFile(s.file(r))
	if err != nil {
		return Record{}, err
	}
	if json.Unmarshal(data, &found) != nil || found.Intent != r.Intent || found.DraftID != r.DraftID {
		return Record{}, fmt.Errorf("client: the file of the intent is damaged; look at what was done before you remove %s", s.file(r))
	}
	return found, nil
}

// write puts the whole file in its place in one step. It is a link and not a rename, which would replace another's record.
func (s *Files) write(r Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, "new-*") // with the mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), s.file(r)); err != nil {
		return err
	}
	return s.sync()
}

func (s *Files) sync() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	_ = d.Sync() // some systems cannot sync a folder
	return d.Close()
}

// Remove is as [Store] says.
func (s *Files) Remove(_ context.Context, r Record) error {
	removing.Lock()
	defer removing.Unlock()
	found, err := s.read(r)
	if errors.Is(err, fs.ErrNotExist) || err == nil && found.Key != r.Key {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(s.file(r)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.sync()
}

// SQLTable makes the table of [SQL], in SQLite and in PostgreSQL.
const SQLTable = `CREATE TABLE IF NOT EXISTS client_intents (
  intent      TEXT    NOT NULL,
  draft_id    TEXT    NOT NULL,
  intent_key  TEXT    NOT NULL,
  produced_by TEXT    NOT NULL,
  created_at  BIGINT  NOT NULL, -- seconds since 1970, UTC
  ttl_hours   INTEGER NOT NULL,
  PRIMARY KEY (intent, draft_id)
)`

// SQL is a Store in the table of [SQLTable], in SQLite or PostgreSQL. Safe for concurrent use, by several processes too.
type SQL struct{ db *sql.DB }

// NewSQL gives the Store in db, which stays the caller's to close. The table has to be there.
func NewSQL(db *sql.DB) *SQL { return &SQL{db} }

// Keep is as [Store] says. It commits by itself.
func (s *SQL) Keep(ctx context.Context, r Record) (stands Record, found bool, err error) {
	for range rounds {
		done, err := s.db.ExecContext(ctx, `INSERT INTO client_intents (intent, draft_id, intent_key, produced_by, created_at, ttl_hours)
 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`, r.Intent, r.DraftID, r.Key, r.ProducedBy, r.CreatedAt.Unix(), r.TTLHours)
		if err != nil {
			return Record{}, false, err
		}
		if n, err := done.RowsAffected(); err != nil || n > 0 {
			return r, false, err
		}
		stands, created := Record{Intent: r.Intent, DraftID: r.DraftID}, int64(0)
		err = s.db.QueryRowContext(ctx, `SELECT intent_key, produced_by, created_at, ttl_hours FROM client_intents WHERE intent = $1 AND draft_id = $2`,
			r.Intent, r.DraftID).Scan(&stands.Key, &stands.ProducedBy, &created, &stands.TTLHours)
		if !errors.Is(err, sql.ErrNoRows) {
			stands.CreatedAt = time.Unix(created, 0).UTC()
			return stands, true, err
		}
	}
	return Record{}, false, errUnsteady
}

// Remove is as [Store] says.
func (s *SQL) Remove(ctx context.Context, r Record) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM client_intents WHERE intent = $1 AND draft_id = $2 AND intent_key = $3`, r.Intent, r.DraftID, r.Key)
	return err
}
