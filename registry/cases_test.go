package registry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

// deployed is one version of a program: a bus of its own on a store that all versions share, with one command.
func deployed[C bus.Command[R], R any](t *testing.T, store *memstore.Store, h bus.Handler[C, R]) *bus.Bus {
	t.Helper()
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, h)
	return build(t, reg)
}

// try sends under the key and says how it ended.
func try[C bus.Command[R], R any](t *testing.T, b *bus.Bus, id, key string, cmd C) (R, requestctx.Outcome, error) {
	t.Helper()
	ctx, req := request(t.Context(), t, id, key)
	res, err := bus.Send(ctx, b, cmd)
	return res, req.Outcome(), err
}

// bookingV1 and its successors are one command in the versions of a program.
type bookingV1 struct {
	Room string `json:"room" validate:"required"`
}

type bookedV1 struct {
	Number string `json:"number"`
}

func (bookingV1) CommandName() bus.Name[bookedV1] { return "hotel.book" }
func (bookingV1) Idempotent()                     {}

// BookingV2 has another Go name, its fields too, an optional field more, and a result of another type.
type BookingV2 struct {
	TheRoom   string  `json:"room"      validate:"required"`
	Breakfast bool    `json:"breakfast"`
	Voucher   *string `json:"voucher"`
}

type Confirmation struct {
	TheNumber string `json:"number"`
	Floor     int    `json:"floor"`
}

func (BookingV2) CommandName() bus.Name[Confirmation] { return "hotel.book" }
func (BookingV2) Idempotent()                         {}

// A deploy that adds an optional field, renames types and fields in Go and gives the result a field more: the record of the old
// version is replayed by the new one and the other way round, and a changed payload is a conflict in both.
func TestBR52_R16_ADeployThatAddsAFieldAndRenamesTypesReplays(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	v1 := deployed(t, store, func(ctx context.Context, c bookingV1) (bookedV1, error) {
		return bookedV1{"no. 1"}, store.Insert(ctx, "v1 "+c.Room)
	})
	v2 := deployed(t, store, func(ctx context.Context, c BookingV2) (Confirmation, error) {
		return Confirmation{TheNumber: "no. 2", Floor: 7}, store.Insert(ctx, "v2 "+c.TheRoom)
	})

	if _, out, err := try(t, v1, "by v1", "before-the-deploy", bookingV1{"101"}); err != nil || out.Replayed {
		t.Fatal(out, err)
	}
	got, out, err := try(t, v2, "by v2", "before-the-deploy", BookingV2{TheRoom: "101"})
	if err != nil || got != (Confirmation{TheNumber: "no. 1"}) || !out.Replayed || out.OriginalRequestID != "by v1" {
		t.Errorf("the retry after the deploy: %+v, %+v, %v", got, out, err)
	}
	voucher := ""
	for _, changed := range []BookingV2{{TheRoom: "102"}, {TheRoom: "101", Breakfast: true}, {TheRoom: "101", Voucher: &voucher}} {
		_, _, err := try(t, v2, "changed", "before-the-deploy", changed)
		wantCode(t, err, "IDEMPOTENCY_KEY_CONFLICT")
	}

	// Both run side by side, or v2 is rolled back.
	if _, out, err := try(t, v2, "by v2", "during-the-deploy", BookingV2{TheRoom: "201"}); err != nil || out.Replayed {
		t.Fatal(out, err)
	}
	old, out, err := try(t, v1, "by v1", "during-the-deploy", bookingV1{"201"})
	if err != nil || old != (bookedV1{"no. 2"}) || !out.Replayed {
		t.Errorf("the retry at the old version: %+v, %+v, %v", old, out, err)
	}
	_, _, err = try(t, v1, "changed", "during-the-deploy", bookingV1{"202"})
	wantCode(t, err, "IDEMPOTENCY_KEY_CONFLICT")
	holds(t, store, 2, "v1 101", "v2 201")
}

// addNote writes to the thread that it names. Hidden is not part of its JSON and yet changes what it means.
type addNote struct {
	Thread int    `json:"thread"`
	Text   string `json:"text"`
	Hidden string `json:"-"`
}

func (addNote) CommandName() bus.Name[string] { return "threads.add_note" }
func (addNote) Idempotent()                   {}

func TestBR21_AKeyAcceptedForOneThreadIsAConflictForAnother(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	b := deployed(t, store, func(ctx context.Context, c addNote) (string, error) {
		return "added", store.Insert(ctx, fmt.Sprint("thread ", c.Thread))
	})
	if _, _, err := try(t, b, "first", theKey, addNote{Thread: 1, Text: "hello"}); err != nil {
		t.Fatal(err)
	}
	for _, other := range []addNote{{Thread: 2, Text: "hello"}, {Thread: 1, Text: "hello", Hidden: "x"}} {
		res, out, err := try(t, b, "second", theKey, other)
		var conflict *idempotency.ConflictError
		if !errors.As(err, &conflict) || res != "" || out.Replayed {
			t.Errorf("%+v was answered %q, %+v, %v", other, res, out, err)
		}
	}
	holds(t, store, 1, "thread 1")
}

// Nothing cleans up here: a record that is over counts as absent because the claim says so.
func TestBR50_AnExpiredKeyIsNewWorkBeforeAnyCleanUp(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	s.must(t, "first", theKey, s.pay())
	s.store.Age(idempotency.DefaultRetention - time.Second)
	if _, out := s.must(t, "in time", theKey, s.pay()); !out.Replayed {
		t.Errorf("a second before the end: %+v", out)
	}
	s.store.Age(time.Second)
	if n := len(s.store.Records()); n != 1 {
		t.Fatalf("%d records", n)
	}
	got, out := s.must(t, "too late", theKey, place{Cart: "cart-2", Amount: 1})
	if got.Order != "order-2" || out.Replayed || !out.ReusedExpired || out.OriginalRequestID != "too late" {
		t.Errorf("afterwards: %+v, %+v", got, out)
	}
	holds(t, s.store, 1, "cart-1 4990", "cart-2 1")
}

// quote is a command whose result depends on the moment.
type quote struct {
	Item string `json:"item"`
}

type price struct {
	Cents int       `json:"cents"`
	Until time.Time `json:"until"`
}

func (quote) CommandName() bus.Name[price] { return "shop.quote" }
func (quote) Idempotent()                  {}

func TestR18_AReplayGivesTheValueOfTheFirstExecution(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	cents := 0
	b := deployed(t, store, func(ctx context.Context, c quote) (price, error) {
		cents += 100
		return price{cents, time.Now().Add(time.Hour)}, store.Insert(ctx, c.Item)
	})
	first, _, err := try(t, b, "first", theKey, quote{"lamp"})
	if err != nil {
		t.Fatal(err)
	}
	cents = 900
	again, out, err := try(t, b, "again", theKey, quote{"lamp"})
	if err != nil || again != first || first.Cents != 100 || !out.Replayed {
		t.Errorf("first %+v, then %+v, %+v, %v", first, again, out, err)
	}
}

// A provider that is busy is no outcome: the key is free, and a retry runs.
func TestR07_AProviderThatIsBusyLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	busy := &codedError{"PROVIDER_BUSY", "the provider says 429"}
	s.handle = func(context.Context, place) error { return busy }
	_, out, err := s.send(t, "refused", theKey, s.pay())
	if err != error(busy) || out.State != requestctx.StateFreed {
		t.Errorf("got %v, %+v", err, out)
	}
	holds(t, s.store, 0)
	s.handle = nil
	if _, out := s.must(t, "retry", theKey, s.pay()); out.Replayed {
		t.Errorf("the retry: %+v", out)
	}
	holds(t, s.store, 1, "cart-1 4990")
}

// A key that a client derives from content and day is its mistake; the bus makes it visible instead of hiding it.
func TestBR65_AKeyDerivedFromContentIsSeenAsAReplayOrAConflict(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	const derived = "user-7:plan-gold:2026-07-09"
	s.must(t, "morning", derived, s.pay())
	if _, out := s.must(t, "evening", derived, s.pay()); !out.Replayed || out.OriginalRequestID != "morning" {
		t.Errorf("a second purchase of the day is not visibly a replay: %+v", out)
	}
	wantCode(t, s.attempt(t, "another basket", derived, place{Cart: "cart-2", Amount: 4990}), "IDEMPOTENCY_KEY_CONFLICT")
	s.store.Age(idempotency.DefaultRetention)
	if _, out := s.must(t, "days later", derived, s.pay()); out.Replayed || !out.ReusedExpired {
		t.Errorf("after the retention: %+v", out)
	}
	holds(t, s.store, 1, "cart-1 4990", "cart-1 4990")
}

// issue is a command that makes a secret.
type issue struct {
	User string `json:"user"`
}

type issued struct {
	ID    string `json:"id"`
	Token string `json:"-"`
}

func (issue) CommandName() bus.Name[issued] { return "tokens.issue" }
func (issue) Idempotent()                   {}

// What a result's JSON leaves out is not at rest anywhere, and so nobody gets it, the first caller included.
func TestBR57_WhatJSONLeavesOutOfAResultIsNeitherStoredNorAnswered(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	b := deployed(t, store, func(ctx context.Context, c issue) (issued, error) {
		return issued{"token-1", "s3cret"}, store.Insert(ctx, c.User)
	})
	for range 2 {
		if got, _, err := try(t, b, "a", theKey, issue{"ada"}); err != nil || got != (issued{ID: "token-1"}) {
			t.Errorf("answered %+v, %v", got, err)
		}
	}
	if r := store.Records(); len(r) != 1 || string(r[0].Result) != `{"id":"token-1"}` {
		t.Errorf("stored is %+v", r)
	}
}
