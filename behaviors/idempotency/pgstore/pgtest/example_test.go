package pgtest_test

import (
	"context"
	"fmt"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

// An Example function is given no testing.T, so it brings its own stand-in. In a test this is pgtest.Pool(t).
func ExamplePool() {
	tb := pgtest.NewExample("ExamplePool")
	defer tb.End()
	pool := pgtest.Pool(tb)

	var answer int
	if err := pool.QueryRow(context.Background(), "SELECT 6 * 7").Scan(&answer); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(answer)
	// Output: 42
}

// The COMMIT is executed, and whoever sent it never hears of it.
func ExampleProxy_Arm() {
	tb := pgtest.NewExample("ExampleProxy_Arm")
	defer tb.End()
	database := pgtest.Open(tb)
	proxy := database.Proxy()
	pool := pgtest.NewPool(tb, proxy.PoolConfig())

	ctx := context.Background()
	if _, err := database.Pool().Exec(ctx, "CREATE TABLE orders (id int)"); err != nil {
		fmt.Println(err)
		return
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", 1); err != nil {
		fmt.Println(err)
		return
	}
	lost := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.DropAnswer})
	err = tx.Commit(ctx)
	<-lost.Fired()

	var orders int
	if err := database.Pool().QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&orders); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("commit failed:", err != nil, "- orders:", orders)
	// Output: commit failed: true - orders: 1
}
