package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// inTxCases are those of the store's InTx.
func inTxCases() []specCase {
	// panics calls InTx with a function that panics after it has written a row, and demands that the panic comes out.
	panics := func(t *testing.T, f Fixture, ctx context.Context) {
		t.Helper()
		defer func() {
			if p := recover(); p != "out of paper" {
				t.Errorf("the panic of a function in InTx came out as %v", p)
			}
		}()
		_ = f.InTx(ctx, func(ctx context.Context) error {
			if err := f.Insert(ctx, "of a panic"); err != nil {
				t.Errorf("Insert: %v", err)
			}
			panic("out of paper")
		})
	}
	fails := func(f Fixture, ctx context.Context, note string) error {
		return f.InTx(ctx, func(ctx context.Context) error {
			if err := f.Insert(ctx, note); err != nil {
				return err
			}
			return errChanged
		})
	}
	return []specCase{
		{"Store_InTxOfALeaseUndoesWhatFailed",
			"A handler whose business transaction failed has still its lease: it may try again, or end in another way, and nothing of the first try is committed.",
			func(t *testing.T, f Fixture) {
				c := leased("in-tx-1")
				l := take(t, f.Store, c)
				ctx := l.Context(within(t))
				undone := func(what string) {
					t.Helper()
					if l.Open() {
						t.Errorf("Open is true after %s", what)
					}
					wantDatabase(t, f, 1)
					wantLeased(t, f.Store, c, inProgress(c, l.Grant()))
				}
				if err := fails(f, ctx, "undone 1"); !errors.Is(err, errChanged) {
					t.Errorf("InTx says %v, want the function's error", err)
				}
				undone("a function that failed")
				panics(t, f, ctx)
				undone("a function that panicked")

				wrote(t, f, l, "undone 2")
				if err := fails(f, ctx, "undone 3"); !errors.Is(err, errChanged) {
					t.Errorf("a second InTx says %v, want the function's error", err)
				}
				undone("a second function that failed")
				if err := l.Renew(within(t)); err != nil {
					t.Errorf("Renew after a business transaction that was rolled back: %v", err)
				}

				wrote(t, f, l, "one")
				wrote(t, f, l, "two") // it goes on in the same transaction
				wantDatabase(t, f, 1)
				err := f.InTx(ctx, func(ctx context.Context) error {
					return f.InTx(ctx, func(ctx context.Context) error { return f.Insert(ctx, "three") })
				})
				if err != nil {
					t.Errorf("InTx within InTx: %v", err)
				}
				wantDatabase(t, f, 1)
				completed(t, l)
				wantDatabase(t, f, 1, "one", "two", "three")

				d := leased("in-tx-2") // a handler may make its peace with a transaction that failed
				m := take(t, f.Store, d)
				_ = fails(f, m.Context(within(t)), "undone 4")
				completed(t, m)
				wantLeased(t, f.Store, d, finished(d, m.Grant(), success))

				e := leased("in-tx-3")
				m = take(t, f.Store, e)
				_ = fails(f, m.Context(within(t)), "undone 5")
				if err := m.Refuse(within(t), refusal); err != nil {
					t.Errorf("Refuse after a business transaction that failed: %v", err)
				}
				wantDatabase(t, f, 3, "one", "two", "three")
			}},
		{"Store_InTxInsideAnotherIsPartOfIt",
			"One function calls another, and both use InTx. What the inner one leaves half written is not committed because the outer one has overlooked its error.",
			func(t *testing.T, f Fixture) {
				c := leased("inside-1")
				l := take(t, f.Store, c)
				inside := func(where string, ctx context.Context) {
					t.Helper()
					err := f.InTx(ctx, func(ctx context.Context) error {
						if err := f.Insert(ctx, "undone 1"); err != nil {
							return err
						}
						if err := fails(f, ctx, "undone 2"); !errors.Is(err, errChanged) {
							t.Errorf("%s: InTx within InTx says %v, want the function's error", where, err)
						}
						return nil
					})
					if !errors.Is(err, idempotency.ErrTransactionAborted) {
						t.Errorf("%s: InTx in which another has failed says %v, want ErrTransactionAborted", where, err)
					}
					err = f.InTx(ctx, func(ctx context.Context) error {
						if err := f.Insert(ctx, where+", outer"); err != nil {
							return err
						}
						return f.InTx(ctx, func(ctx context.Context) error { return f.Insert(ctx, where+", inner") })
					})
					if err != nil {
						t.Errorf("%s: InTx within InTx: %v", where, err)
					}
				}
				inside("lease", l.Context(within(t)))
				wantDatabase(t, f, 1)
				completed(t, l)
				wantDatabase(t, f, 1, "lease, outer", "lease, inner")
				inside("job", within(t))
				wantDatabase(t, f, 1, "lease, outer", "lease, inner", "job, outer", "job, inner")
			}},
		{"Store_SuccessWhoseRowsALaterInTxHasUndoneIsRefused",
			"A second InTx goes on in the transaction of the first, so its failure undoes both. A handler that overlooks it must not be recorded as having done the first.",
			func(t *testing.T, f Fixture) {
				c := leased("undone-1")
				l := take(t, f.Store, c)
				wrote(t, f, l, "undone 1")
				_ = fails(f, l.Context(within(t)), "undone 2")
				if err := l.Complete(within(t), success); !errors.Is(err, idempotency.ErrTransactionAborted) {
					t.Errorf("Complete of a success whose rows are gone says %v, want ErrTransactionAborted", err)
				}
				wantLeased(t, f.Store, c, inProgress(c, l.Grant()))
				if err := l.Release(within(t)); err != nil {
					t.Errorf("Release after that: %v", err)
				}
				wantDatabase(t, f, 1)

				d := leased("undone-2")
				l = take(t, f.Store, d)
				wrote(t, f, l, "undone 3")
				_ = fails(f, l.Context(within(t)), "undone 4")
				if err := l.Refuse(within(t), refusal); err != nil {
					t.Errorf("Refuse after that: %v", err)
				}
				wantDatabase(t, f, 2)
			}},
		{"Store_InTxThatIsStillRunningSpoilsTheSuccess",
			"A goroutine that the handler did not wait for is in the middle of its rows; half of them must not be committed as the whole.",
			func(t *testing.T, f Fixture) {
				c := leased("running-1")
				l := take(t, f.Store, c)
				ctx := l.Context(within(t))
				half, goOn, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
				go func() {
					left <- f.InTx(ctx, func(ctx context.Context) error {
						err := f.Insert(ctx, "half")
						close(half)
						<-goOn
						return err
					})
				}()
				defer close(goOn)
				await(t, half, "the first half")
				if err := l.Complete(within(t), success); !errors.Is(err, idempotency.ErrTransactionAborted) {
					t.Errorf("Complete while a function is running in InTx says %v, want ErrTransactionAborted", err)
				}
				goOn <- struct{}{}
				if err := await(t, left, "the end of InTx"); err == nil {
					t.Error("InTx whose attempt was ended while it ran says nothing")
				}
				wantLeased(t, f.Store, c, inProgress(c, l.Grant()))
				wantDatabase(t, f, 1)
			}},
		{"Store_InTxOutsideACommandIsAnOrdinaryTransaction",
			"The same function is used by a command's handler and by a job: outside a command it commits by itself, or not at all.",
			func(t *testing.T, f Fixture) {
				ctx := within(t)
				var inner context.Context
				err := f.InTx(ctx, func(ctx context.Context) error {
					inner = ctx
					if err := f.Insert(ctx, "one"); err != nil {
						return err
					}
					wantDatabase(t, f, 0)
					return f.Insert(ctx, "two")
				})
				if err != nil {
					t.Fatalf("InTx: %v", err)
				}
				wantDatabase(t, f, 0, "one", "two")
				if err := f.Insert(inner, "late"); err == nil {
					t.Error("a row was written through a transaction that has been committed")
				}
				if err := fails(f, ctx, "undone"); !errors.Is(err, errChanged) {
					t.Errorf("InTx says %v, want the function's error", err)
				}
				panics(t, f, ctx)
				wantDatabase(t, f, 0, "one", "two")
				ended, cancel := context.WithCancel(ctx)
				cancel()
				if err := f.InTx(ended, func(ctx context.Context) error { return f.Insert(ctx, "undone") }); err == nil {
					t.Error("InTx on an ended context succeeds")
				}
				wantDatabase(t, f, 0, "one", "two")
			}},
		{"Store_InTxOfAnAtomicCommandIsItsTransaction",
			"A handler does not have to know under which mode it runs: what it writes in InTx is committed with the command's record, or not at all.",
			func(t *testing.T, f Fixture) {
				c := claim("in-atomic-1")
				a := begin(t, f.Store, c)
				ctx := a.Context(within(t))
				if err := f.InTx(ctx, func(ctx context.Context) error { return f.Insert(ctx, "one") }); err != nil {
					t.Fatalf("InTx: %v", err)
				}
				if !a.Used() {
					t.Error("Used is false after InTx has written")
				}
				insert(t, f, a, "two")
				wantDatabase(t, f, 0)
				if err := a.Complete(within(t), success); err != nil {
					t.Fatalf("Complete: %v", err)
				}
				wantDatabase(t, f, 1, "one", "two")
				wantRecord(t, f.Store, c, recorded(c, success))
				ran := false
				if err := f.InTx(ctx, func(context.Context) error { ran = true; return nil }); err == nil || ran {
					t.Errorf("InTx on the context of an attempt that has ended gives %v and ran its function: %v", err, ran)
				}
			}},
		{"Store_InTxThatFailedInAnAtomicCommandSpoilsItsSuccess",
			"What failed in InTx may be half written and cannot be undone by itself there. A handler that forgets the error must not commit it.",
			func(t *testing.T, f Fixture) {
				for name, fail := range map[string]func(ctx context.Context){
					"error": func(ctx context.Context) {
						if err := fails(f, ctx, "half"); !errors.Is(err, errChanged) {
							t.Errorf("InTx says %v, want the function's error", err)
						}
					},
					"panic": func(ctx context.Context) { panics(t, f, ctx) },
				} {
					c := claim("in-atomic-" + name)
					a := begin(t, f.Store, c)
					insert(t, f, a, "undone")
					fail(a.Context(within(t)))
					_ = f.InTx(a.Context(within(t)), func(ctx context.Context) error { return f.Insert(ctx, "undone as well") }) // does not mend it
					if err := a.Complete(within(t), success); !errors.Is(err, idempotency.ErrTransactionAborted) {
						t.Errorf("%s: Complete says %v, want ErrTransactionAborted", name, err)
					}
					if rec := look(t, f.Store, c); rec != nil {
						t.Errorf("%s: there is the record %s", name, show(rec))
					}
				}
				wantDatabase(t, f, 0)

				c := claim("in-atomic-refused") // a final refusal is not a success: its rows are undone anyway
				a := begin(t, f.Store, c)
				_ = fails(f, a.Context(within(t)), "undone")
				if err := a.Refuse(within(t), refusal); err != nil {
					t.Errorf("Refuse after an InTx that failed: %v", err)
				}
				wantRecord(t, f.Store, c, recorded(c, refusal))
				wantDatabase(t, f, 1)
			}},
	}
}
