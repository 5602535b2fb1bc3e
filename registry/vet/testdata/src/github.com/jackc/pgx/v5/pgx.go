package pgx

import "context"

type (
	Rows interface{ Close() }
	Row  interface{ Scan(...any) error }
	Tx   interface {
		Begin(ctx context.Context) (Tx, error)
		Commit(ctx context.Context) error
		Rollback(ctx context.Context) error
		Exec(ctx context.Context, sql string, args ...any) (int, error)
		Query(ctx context.Context, sql string, args ...any) (Rows, error)
		QueryRow(ctx context.Context, sql string, args ...any) Row
	}
)

func BeginFunc(ctx context.Context, db beginner, fn func(Tx) error) error { return nil }

type beginner interface {
	Begin(context.Context) (Tx, error)
}
