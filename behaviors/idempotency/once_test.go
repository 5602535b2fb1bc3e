package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// The inbox for handlers that are not commands, and the ids of events.

const message = "msg-0000-1"

func engineOn(t testing.TB, store idempotency.Store) *idempotency.Engine {
	t.Helper()
	e, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func mustKey(t testing.TB, s string) requestctx.Key {
	t.Helper()
	key, err := requestctx.ParseKey(s)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// mail is a handler of messages that writes a row.
func mail(store *memstore.Store, runs *int) func(context.Context) error {
	return func(ctx context.Context) error {
		*runs++
		return store.Insert(ctx, fmt.Sprint("mail ", *runs))
	}
}

func TestW02_MessageThatIsDeliveredAgainIsDoneOnce(t *testing.T) {
	t.Parallel()
	store, runs := memstore.New(), 0
	for range 3 {
		if err := idempotency.Once(t.Context(), store, "mailer", message, mail(store, &runs)); err != nil {
			t.Fatal(err)
		}
	}
	if rows := store.Rows(); runs != 1 || len(rows) != 1 || len(store.Records()) != 1 {
		t.Errorf("%d runs, rows %v, %d records", runs, rows, len(store.Records()))
	}
}

func TestW05_SeveralConsumersOfOneMessageAreIndependent_BR25(t *testing.T) {
	t.Parallel()
	store, runs := memstore.New(), 0
	for range 2 {
		for _, consumer := range []string{"mailer", "shipping", "billing"} {
			for _, topic := range []string{"orders", "returns"} { // whose ids collide
				ctx, _ := requestctx.New(t.Context(), requestctx.Values{Scope: requestctx.Scope{Client: topic}})
				if err := idempotency.Once(ctx, store, consumer, message, mail(store, &runs)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if runs != 6 || len(store.Rows()) != 6 {
		t.Errorf("%d runs, rows %v", runs, store.Rows())
	}
}

func TestW08_MessageWhoseHandlerFailsIsDeliverable_BR16(t *testing.T) {
	t.Parallel()
	store, runs := memstore.New(), 0
	work := mail(store, &runs)
	broken := errors.New("no connection")
	err := idempotency.Once(t.Context(), store, "mailer", message, func(ctx context.Context) error {
		return errors.Join(work(ctx), broken)
	})
	if !errors.Is(err, broken) || len(store.Rows()) != 0 || len(store.Records()) != 0 {
		t.Errorf("%v, rows %v", err, store.Rows())
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic does not reach the caller")
			}
		}()
		_ = idempotency.Once(t.Context(), store, "mailer", message, func(ctx context.Context) error {
			_ = work(ctx)
			panic("broken")
		})
	}()
	if len(store.Rows()) != 0 || len(store.Records()) != 0 {
		t.Errorf("a panic has left rows %v", store.Rows())
	}
	for range 2 {
		if err := idempotency.Once(t.Context(), store, "mailer", message, work); err != nil {
			t.Error(err)
		}
	}
	if len(store.Rows()) != 1 || runs != 3 {
		t.Errorf("%d runs, rows %v", runs, store.Rows())
	}
}

func TestW03_MessageThatIsBeingDoneIsInProgressAndNotDone_BR16(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	at, done := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- idempotency.Once(t.Context(), store, "mailer", message, func(ctx context.Context) error {
			close(at)
			<-done
			return store.Insert(ctx, "mail")
		})
	}()
	<-at
	err := idempotency.Once(t.Context(), store, "mailer", message, func(context.Context) error {
		t.Error("it ran twice")
		return nil
	})
	if _, busy := errors.AsType[*idempotency.InProgressError](err); !busy {
		t.Errorf("got %v", err)
	}
	close(done)
	if err := <-first; err != nil || len(store.Rows()) != 1 {
		t.Errorf("%v, rows %v", err, store.Rows())
	}
}

func TestManyDeliveriesAtOnceAreDoneOnce_W03(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for {
				err := idempotency.Once(t.Context(), store, "mailer", message, func(ctx context.Context) error { return store.Insert(ctx, "mail") })
				if _, busy := errors.AsType[*idempotency.InProgressError](err); !busy {
					if err != nil {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	all.Wait()
	if rows := store.Rows(); len(rows) != 1 {
		t.Errorf("rows %v", rows)
	}
}

func TestW04_MessageWithoutAnIDIsRefusedAndNoneIsMadeUp_BR13(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	never := func(context.Context) error {
		t.Error("it ran")
		return nil
	}
	for id, code := range map[string]string{"": "IDEMPOTENCY_KEY_MISSING", "short": "IDEMPOTENCY_KEY_INVALID", " padded-id ": "IDEMPOTENCY_KEY_INVALID", "        ": "IDEMPOTENCY_KEY_INVALID"} {
		err := idempotency.Once(t.Context(), store, "mailer", id, never)
		if bus.CodeOf(err) != code || id != "" && strings.Contains(err.Error(), id) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if _, ok := errors.AsType[*idempotency.ScopeError](idempotency.Once(t.Context(), store, "", message, never)); !ok {
		t.Error("a consumer without a name is let through")
	}
	if n := len(store.Records()); n != 0 {
		t.Errorf("%d records", n)
	}
}

func TestW07_MessageThatIsRefusedForGoodIsRefusedAgain(t *testing.T) {
	t.Parallel()
	store, runs := memstore.New(), 0
	for range 2 {
		err := idempotency.Once(t.Context(), store, "mailer", message, func(ctx context.Context) error {
			runs++
			_ = store.Insert(ctx, "undone")
			return idempotency.Final(errors.New("the address is closed"))
		})
		if refused, ok := errors.AsType[*idempotency.RefusedError](err); !ok || refused.Message != "the address is closed" {
			t.Errorf("got %v", err)
		}
	}
	if runs != 1 || len(store.Rows()) != 0 {
		t.Errorf("%d runs, rows %v", runs, store.Rows())
	}
}

func TestW18_MessageThatComesBackAfterTheRetentionIsNewWork_BR51(t *testing.T) {
	t.Parallel()
	store, runs := memstore.New(), 0
	once := func() requestctx.Outcome {
		ctx, req := requestctx.New(t.Context(), requestctx.Values{})
		if err := idempotency.Once(ctx, store, "mailer", message, mail(store, &runs)); err != nil {
			t.Fatal(err)
		}
		return req.Outcome()
	}
	once()
	store.Age(idempotency.InboxRetention - time.Hour)
	if o := once(); !o.Replayed || runs != 1 {
		t.Errorf("before its retention is over: %+v, %d runs", o, runs)
	}
	store.Age(2 * time.Hour)
	if o := once(); o.Replayed || !o.ReusedExpired || runs != 2 {
		t.Errorf("after it: %+v, %d runs", o, runs)
	}
}

func TestOnceInsideACommandIsRefused(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	send := serveOn(t, engineOn(t, store), func(ctx context.Context, c entry) (paid, error) {
		return paid{}, idempotency.Once(ctx, store, "mailer", message, func(context.Context) error { return nil })
	})
	ctx, _ := requestctx.New(t.Context(), requestctx.Values{Key: mustKey(t, "order-12345"), Scope: requestctx.Scope{Client: "c"}})
	_, err := send(ctx, entry{Name: "a"})
	if _, ok := errors.AsType[*idempotency.HandlerError](err); !ok || len(store.Records()) != 0 {
		t.Errorf("got %v", err)
	}
}

func TestN15_EventsOfACommandHaveIDsOfTheirOwn(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	var ids []string
	fail := true
	send := serveOn(t, engineOn(t, store), func(ctx context.Context, c entry) (paid, error) {
		for range 2 {
			id, err := idempotency.EventID(ctx)
			if err != nil {
				return paid{}, err
			}
			ids = append(ids, id)
		}
		if fail {
			return paid{}, errors.New("rolled back")
		}
		return paid{}, store.Insert(ctx, c.Name)
	})
	dispatch := func(key string) error {
		ctx, _ := requestctx.New(t.Context(), requestctx.Values{Key: mustKey(t, key), Scope: requestctx.Scope{Client: "c"}})
		_, err := send(ctx, entry{Name: "a"})
		return err
	}
	if dispatch("order-12345") == nil {
		t.Fatal("it did not fail")
	}
	fail = false
	for range 3 { // the last two are replays, which emit nothing
		if err := dispatch("order-12345"); err != nil {
			t.Fatal(err)
		}
	}
	if err := dispatch("order-12346"); err != nil {
		t.Fatal(err)
	}
	store.Age(idempotency.DefaultRetention + time.Hour)
	if err := dispatch("order-12345"); err != nil { // a new life: its events are new
		t.Fatal(err)
	}
	if len(ids) != 8 {
		t.Fatalf("%d events", len(ids))
	}
	for i, id := range ids {
		if _, err := requestctx.ParseKey(id); err != nil || len(id) != 43 || slices.Index(ids, id) != i || strings.Contains(id, "12345") {
			t.Errorf("event %d has the id %q", i, id)
		}
	}
	if _, err := idempotency.EventID(t.Context()); !errors.Is(err, idempotency.ErrNoIntent) {
		t.Errorf("outside: %v", err)
	}
}
