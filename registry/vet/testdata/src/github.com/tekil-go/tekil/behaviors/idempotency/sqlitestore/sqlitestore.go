package sqlitestore

import (
	"context"
	"database/sql"
)

type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func DB(ctx context.Context, db *sql.DB) DBTX                                        { return db }
func InTx(ctx context.Context, db *sql.DB, fn func(ctx context.Context) error) error { return fn(ctx) }
