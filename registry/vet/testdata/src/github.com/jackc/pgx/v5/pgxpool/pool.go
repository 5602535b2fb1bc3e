package pgxpool

import (
	"context"

	"github.com/jackc/pgx/v5"
)

type Pool struct{}

func (*Pool) Begin(ctx context.Context) (pgx.Tx, error)                            { return nil, nil }
func (*Pool) Exec(ctx context.Context, sql string, args ...any) (int, error)       { return 0, nil }
func (*Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) { return nil, nil }
func (*Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row        { return nil }
func (*Pool) Ping(ctx context.Context) error                                       { return nil }
