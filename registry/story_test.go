package registry_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// A customer forgets a field, the form is refused, he corrects it and sends it again under the same key. Nothing happened the
// first time, so this must run: V03, V04, pipe-3.
func TestStory_TheCorrectedFormRunsUnderItsKey(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	for _, form := range []place{{Amount: 4990}, {Cart: "cart-1"}, {Cart: "closed", Amount: 4990}, {Cart: "cart-1", Amount: -1}} {
		_, out, err := s.send(t, "refused", theKey, form)
		wantCode(t, err, "VALIDATION_FAILED")
		if out.State != "" || out.OriginalRequestID != "" {
			t.Errorf("a refused form reported %+v", out)
		}
		if calls := touched(s.tr.take()); len(calls) != 0 {
			t.Errorf("a refused form asked the store: %q", calls)
		}
		holds(t, s.store, 0)
	}

	got, out := s.must(t, "corrected", theKey, place{Cart: "cart-1", Amount: 4990})
	if got != (placed{"order-1", "cart-1", 4990}) || out.Replayed || out.OriginalRequestID != "corrected" {
		t.Errorf("the corrected form: %+v, %+v", got, out)
	}
	again, out := s.must(t, "once more", theKey, place{Cart: "cart-1", Amount: 4990})
	if again != got || !out.Replayed || out.OriginalRequestID != "corrected" {
		t.Errorf("the corrected form once more: %+v, %+v", again, out)
	}
	if n := s.orders.Load(); n != 1 {
		t.Errorf("%d orders", n)
	}
	holds(t, s.store, 1, "cart-1 4990")
}

// The same with both forms at the same moment, on two processes: whichever comes first, the valid one gets the key.
func TestStory_TheCorrectedFormWinsTheKey_BR01(t *testing.T) {
	t.Parallel()
	const rounds = 200
	store := memstore.New()
	one, two := open(t, store), open(t, store)
	for i := range rounds {
		key := fmt.Sprintf("intent-%04d", i)
		start := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			<-start
			wantCode(t, one.attempt(t, "refused", key, place{Cart: "cart-1", Amount: -5}), "VALIDATION_FAILED")
		})
		wg.Go(func() {
			<-start
			if _, out := two.must(t, "corrected", key, place{Cart: "cart-1", Amount: 50}); out.Replayed {
				t.Errorf("round %d: %+v", i, out)
			}
		})
		close(start)
		wg.Wait()
	}
	if n := two.orders.Load(); n != rounds || one.orders.Load() != 0 || len(store.Records()) != rounds || len(store.Rows()) != rounds {
		t.Errorf("%d and %d orders, %d records, %d rows in %d rounds", one.orders.Load(), n, len(store.Records()), len(store.Rows()), rounds)
	}
}

// BR-01 (4): nobody makes a key up, so a valid form without one is refused as often as it comes.
func TestStory_TheFormWithoutAKeyNeverRuns_BR01(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	for range 2 {
		wantCode(t, s.attempt(t, "a", "", s.pay()), "IDEMPOTENCY_KEY_MISSING")
	}
	if n := s.orders.Load(); n != 0 {
		t.Errorf("%d orders", n)
	}
	holds(t, s.store, 0)
}

// A customer presses "pay". The work takes 35 seconds and his client gives up after 30. He tries again: with the same key he
// gets the answer that he missed; without a key there would be two orders (see-3).
func TestStory_TheLostAnswerIsReplayed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send func(context.Context, *shop) error
		rows []string
	}{
		"with a key": {
			send: func(ctx context.Context, s *shop) error { _, err := bus.Send(ctx, s.Bus, s.pay()); return err },
			rows: []string{"cart-1 4990"},
		},
		"without one": {
			send: func(ctx context.Context, s *shop) error {
				_, err := bus.Send(ctx, s.Bus, unkeyed{Cart: "cart-1"})
				return err
			},
			rows: []string{"unkeyed", "unkeyed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := open(t, memstore.New())
				s.handle = func(ctx context.Context, _ place) error {
					if requestctx.From(ctx).ID() == "attempt-1" {
						time.Sleep(35 * time.Second)
					}
					return nil
				}
				// The client sees an answer only if it comes within 30 seconds; the server goes on.
				try := func(id string) (answered bool) {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					ctx, _ = request(ctx, t, id, theKey)
					done := make(chan error, 1)
					go func() { done <- c.send(ctx, s) }()
					select {
					case err := <-done:
						return err == nil
					case <-ctx.Done():
						return false
					}
				}
				if try("attempt-1") {
					t.Fatal("the answer was not lost, so this shows nothing")
				}
				time.Sleep(10 * time.Second) // he reads the page that offers to try again
				if !try("attempt-2") {
					t.Fatal("the second try has no answer")
				}
				equal(t, "rows", s.store.Rows(), c.rows)
			})
		})
	}
}

// The same with the retry while the work is still going on: it is told to come again and then gets the first one's answer.
func TestStory_TheLostAnswerIsAskedForTooEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, memstore.New())
		s.handle = func(context.Context, place) error { time.Sleep(35 * time.Second); return nil }
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		first, _ := request(ctx, t, "attempt-1", theKey)
		go func() { _, _ = bus.Send(first, s.Bus, s.pay()) }()
		<-ctx.Done()

		wantCode(t, s.attempt(t, "attempt-2", theKey, s.pay()), "IDEMPOTENCY_REQUEST_IN_PROGRESS")
		time.Sleep(6 * time.Second)
		got, out := s.must(t, "attempt-3", theKey, s.pay())
		if got.Order != "order-1" || !out.Replayed || out.OriginalRequestID != "attempt-1" {
			t.Errorf("got %+v, %+v", got, out)
		}
		holds(t, s.store, 1, "cart-1 4990")
	})
}

// unkeyed does what place does and is not protected.
type unkeyed struct {
	Cart string `json:"cart" validate:"required"`
}

func (unkeyed) CommandName() bus.Name[placed] { return "shop.place_unkeyed" }
