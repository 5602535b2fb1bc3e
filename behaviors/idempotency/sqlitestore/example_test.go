package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the application chooses the driver

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

// exampleDB opens a database file in a folder of its own.
func exampleDB() (db *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "sqlitestore-example-")
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "shop.db")))
	if err != nil {
		log.Fatal(err)
	}
	return db, func() { _ = errors.Join(db.Close(), os.RemoveAll(dir)) }
}

// insertOrder is a part of an application that knows nothing of idempotency. Code that sqlc generates has the same shape.
func insertOrder(ctx context.Context, db sqlitestore.DBTX, note string) (id int64, err error) {
	err = db.QueryRowContext(ctx, `INSERT INTO orders (note) VALUES (?) RETURNING id`, note).Scan(&id)
	return id, err
}

// The same payment is sent twice, as after an answer that was lost. There is one order, and both get it.
func Example() {
	ctx := context.Background()
	db, remove := exampleDB()
	defer remove()
	if err := sqlitestore.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT NOT NULL)`); err != nil {
		log.Fatal(err)
	}

	store := sqlitestore.New(db)
	handle, err := serve(store, func(ctx context.Context, cmd pay) (paid, error) { // a registry does this in a service
		id, err := insertOrder(ctx, sqlitestore.DB(ctx, db), cmd.Note)
		return paid{OrderID: id}, err
	})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		res, outcome, err := send(ctx, handle, "4f2c1e0a-cart-17", pay{Note: "two books"})
		fmt.Println("order", res.OrderID, "replayed:", outcome.Replayed, "error:", err)
	}
	// Output:
	// order 1 replayed: false error: <nil>
	// order 1 replayed: true error: <nil>
}

// A Leased command calls a payment provider and then writes. Nothing is locked while it is outside, and the provider's answer is
// committed together with the command's outcome.
func ExampleInTx() {
	ctx := context.Background()
	db, remove := exampleDB()
	defer remove()
	if err := sqlitestore.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT NOT NULL)`); err != nil {
		log.Fatal(err)
	}
	authorize := func(_ context.Context, key string) (string, error) { // the provider knows a key that it has seen
		return fmt.Sprintf("authorized under a key of %d characters", len(key)), nil
	}

	handle, err := serve(sqlitestore.New(db), func(ctx context.Context, cmd charge) (res paid, err error) {
		key, err := idempotency.DownstreamKey(ctx, "authorize")
		if err != nil {
			return res, err
		}
		note, err := authorize(ctx, key)
		if err != nil {
			return res, err
		}
		err = sqlitestore.InTx(ctx, db, func(ctx context.Context) error {
			res.OrderID, err = insertOrder(ctx, sqlitestore.DB(ctx, db), cmd.Note+", "+note)
			return err
		})
		return res, err
	})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		res, outcome, err := send(ctx, handle, "4f2c1e0a-cart-18", charge{Note: "two books"})
		fmt.Println("order", res.OrderID, "replayed:", outcome.Replayed, "error:", err)
	}
	var note string
	err = db.QueryRowContext(ctx, `SELECT note FROM orders`).Scan(&note)
	fmt.Println(note, err)
	// Output:
	// order 1 replayed: false error: <nil>
	// order 1 replayed: true error: <nil>
	// two books, authorized under a key of 43 characters <nil>
}

// Outside an idempotent command DB gives the database itself, so one function serves commands, queries and tests.
func ExampleDB() {
	ctx := context.Background()
	db, remove := exampleDB()
	defer remove()
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT NOT NULL)`); err != nil {
		log.Fatal(err)
	}
	id, err := insertOrder(ctx, sqlitestore.DB(ctx, db), "a book")
	fmt.Println(id, err)
	// Output: 1 <nil>
}

func ExampleMigrate() {
	ctx := context.Background()
	db, remove := exampleDB()
	defer remove()
	store := sqlitestore.New(db)
	if _, err := store.Check(ctx); err != nil { // Build calls it
		fmt.Println(err)
	}
	if err := sqlitestore.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	warnings, err := store.Check(ctx)
	fmt.Println(warnings, err)
	// Output:
	// sqlitestore: the table idempotency_records does not exist; run sqlitestore.Migrate, or the steps of sqlitestore.Migrations
	// [] <nil>
}

// Those who run their own migrations copy the steps.
func ExampleMigrations() {
	for _, step := range sqlitestore.Migrations() {
		fmt.Println(step.Version, step.Name)
		for line := range strings.Lines(step.SQL) {
			if strings.HasPrefix(line, "CREATE") || strings.HasPrefix(line, "ALTER") {
				fmt.Print("  ", line)
			}
		}
	}
	// Output:
	// 1 records
	//   CREATE TABLE idempotency_records (
	//   CREATE INDEX idempotency_records_expires ON idempotency_records (expires_at);
	// 2 sequence
	//   CREATE TABLE idempotency_sequence (
	// 3 support
	//   ALTER TABLE idempotency_records ADD COLUMN draft_id TEXT;
	//   ALTER TABLE idempotency_records ADD COLUMN origin_trace TEXT;
}

// An attempt waits at most a second for another process that holds the write lock.
func ExampleNewWithConfig() {
	db, remove := exampleDB()
	defer remove()
	store := sqlitestore.NewWithConfig(db, sqlitestore.Config{BusyTimeout: time.Second})
	fmt.Println(store.Describe())
	// Output: sqlitestore idempotency_records
}
