// Package storetest is the specification of an idempotency store, written as a test suite that every store passes.
//
// It has two layers. The cases whose names begin with Store call the store itself; the others send commands of both modes, Atomic
// and Leased, through the whole idempotency stage, on a bus, and count what the handlers did and what the database holds. Several
// engines on the one store stand for several processes. Where a wire breaks or a process dies, a layer round the store plays that,
// so what a real server or a killed process adds has to be tested beside the suite. Each case says, when it fails, why it is
// there. The ids in the names (R03, L05, T02, BR-09, …) are those of the project's documents.
//
// A store's test is one function:
//
//	func TestStore(t *testing.T) { storetest.Run(t, open) }
//
// where open makes a [Fixture] on an empty database.
package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// Fixture is a store on an empty database of its own, and what the suite has to see and do behind its back. The functions
// are called from many goroutines at once. Those that read or change the database do so at once, on connections of their
// own: an attempt that is open does not block reading.
type Fixture struct {
	// Store is the store under test.
	Store idempotency.Store
	// NoHint is a store on the same database whose Begin never gives [idempotency.ErrBusy], so that attempts of one key
	// run side by side and only the unique key decides; four of them must be able to be open at once. Nil where attempts
	// cannot run side by side, as with a single writer: then the cases that need it say nothing.
	NoHint idempotency.Store
	// Isolations says that the store has isolation levels that can refuse a transaction.
	Isolations bool

	// Insert writes one business row as a handler would: through the store's handle for ctx, which is the attempt's
	// transaction where ctx holds one, the business transaction of a lease while that is open, and otherwise the database
	// itself.
	Insert func(ctx context.Context, note string) error
	// InTx runs fn in a business transaction as a handler would: through the store's InTx, on the database of the fixture.
	InTx func(ctx context.Context, fn func(ctx context.Context) error) error
	// Rows reads the notes of all business rows that are committed, in any order.
	Rows func(t testing.TB) []string
	// Records counts the records.
	Records func(t testing.TB) int
	// Age makes every record older by d: what it holds of the past and of the future moves back by d, so the ends of leases
	// (lease_until), creation (created_at), completion (completed_at) and expiry (expires_at).
	Age func(t testing.TB, d time.Duration)
	// Plant inserts a record as it is, its DraftID and OriginTrace included, whatever id it stands under. Its expiry is an hour ago if rec.Expired is true and
	// in an hour otherwise; it was created just now. Attempts and Fence are planted as they are, and 0 of either as 1. One that
	// is in progress has a lease: of rec.LeaseLeft from now where that is more than 0, and otherwise one that ended a minute
	// ago. A record of another state has none.
	Plant func(t testing.TB, id idempotency.ID, rec idempotency.Record)
}

// Run checks the store that open makes against the specification. open is called once for each case, by as many cases at
// once as go test runs in parallel.
//
// The cases are parallel subtests, so they go on after the function that called Run has returned: what open needs must be
// closed by t.Cleanup and not by defer.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, c := range slices.Concat(storeCases(), leaseCases(), engineCases(), leasedCases(), resultCases()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("The promise behind this case: %s", c.promise)
				}
			})
			c.run(t, open(t))
		})
	}
}

// specCase is one case of the specification.
type specCase struct {
	name string
	// promise is what a user loses when the case fails.
	promise string
	run     func(t *testing.T, f Fixture)
}

// patience is how long a case waits for what must happen, before it fails.
const patience = 30 * time.Second

// within gives the context of a case.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await waits until ch is closed or has a value.
func await[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("%s did not happen in %v", what, patience)
		panic("unreachable")
	}
}
