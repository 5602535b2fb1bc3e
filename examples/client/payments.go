package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tekil-go/tekil/requestctx/client"
)

// Place is the body of a payment, as the checkout reads it.
type Place struct {
	CartID       string `json:"cart_id"`
	Amount       int64  `json:"amount"`
	Currency     string `json:"currency"`
	DraftOrderID string `json:"draft_order_id"`
}

// Placed is the answer.
type Placed struct {
	OrderID  string `json:"order_id"`
	CartID   string `json:"cart_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// The limits of a payment. They allow for a line that loses nine of ten and for a checkout that needs seconds to come back.
const (
	maxTries   = 1000
	perTry     = 2 * maxDelay
	total      = 2 * time.Minute
	backoff    = 20 * time.Millisecond
	maxBackoff = time.Second
)

// tally counts what the client sees.
type tally struct {
	tries, lost, replays, conflicts, refused, resumed atomic.Int64
}

// runner sends the payments of one run.
type runner struct {
	settings
	id    string
	store client.Store // nil to keep intents in memory
	tally *tally
}

// payment is the i-th of the run: the same again when the run is gone on with.
func (r runner) payment(i int) Place {
	currencies := [...]string{"TRY", "EUR", "USD"}
	draft := fmt.Sprintf("%s-%06d", r.id, i)
	return Place{CartID: "cart-" + draft, Amount: int64(100 + i), Currency: currencies[i%len(currencies)], DraftOrderID: draft}
}

// send sends all payments and gives what was answered; the answer of one that was refused is empty. It calls stop where it makes no
// sense to go on.
func (r runner) send(ctx context.Context, stop context.CancelCauseFunc, base string, stdout io.Writer) []Placed {
	transport := &http.Transport{MaxIdleConnsPerHost: r.workers}
	defer transport.CloseIdleConnections()
	c := &client.Client{
		Transport: transport, MaxTries: maxTries, PerTry: perTry, Total: total, Backoff: backoff, MaxBackoff: maxBackoff,
		Observe: func(t client.Try) { r.tally.try(t.Status) },
	}
	pay := func(p Place) (Placed, error) { return r.pay(ctx, c, base, p) }
	if r.noKeys {
		pay = func(p Place) (Placed, error) { return r.payNaively(ctx, transport, base, p) }
	}

	bar := newProgress(stdout, r.payments, r.tally)
	defer bar.end()
	answers := make([]Placed, r.payments)
	var next atomic.Int64
	var all sync.WaitGroup
	for range r.workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < r.payments && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				placed, err := pay(r.payment(i))
				if err != nil {
					stop(fmt.Errorf("payment %d of %d: %w", i+1, r.payments, err))
					return
				}
				answers[i] = placed
				bar.step()
			}
		})
	}
	all.Wait()
	return answers
}

// pay sends a payment under its intent. A payment that is refused is counted, and shows in the report.
func (r runner) pay(ctx context.Context, c *client.Client, base string, p Place) (Placed, error) {
	const name = "checkout"
	options := client.Options{DraftID: p.DraftOrderID, ProducedBy: "examples/client"}
	var intent client.Intent
	var err error
	if r.store == nil {
		intent, err = client.New(name, options)
	} else if intent, err = client.Begin(ctx, r.store, name, options); intent.Resumed() {
		r.tally.resumed.Add(1)
	}
	if err != nil {
		return Placed{}, err
	}
	answer, err := client.Do[Placed](ctx, c, intent, client.Call{URL: base + "/api/v1/checkouts", Command: p, Follow: true})
	var conflict *client.ConflictError
	var refused *client.RefusedError
	switch {
	case errors.As(err, &conflict):
		r.tally.conflicts.Add(1)
		return Placed{}, nil
	case errors.As(err, &refused):
		r.tally.refused.Add(1)
		return Placed{}, nil
	case err != nil:
		return Placed{}, err
	}
	if answer.Replayed {
		r.tally.replays.Add(1)
	}
	return answer.Result, answer.DoneErr
}

// payNaively is how it is not done: the payment has no key, and is sent again whenever there is no answer. [client.Client] would not.
func (r runner) payNaively(ctx context.Context, transport http.RoundTripper, base string, p Place) (Placed, error) {
	body, err := json.Marshal(p)
	if err != nil {
		return Placed{}, err
	}
	post := func() (placed Placed, status int, err error) {
		ctx, cancel := context.WithTimeout(ctx, perTry)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/demo/checkouts", bytes.NewReader(body))
		if err != nil {
			return Placed{}, 0, err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return Placed{}, 0, err
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusCreated {
			err = json.NewDecoder(resp.Body).Decode(&placed)
		}
		return placed, resp.StatusCode, err
	}
	for deadline := time.Now().Add(total); ; {
		placed, status, err := post()
		r.tally.try(status)
		switch {
		case err == nil && status == http.StatusCreated:
			return placed, nil
		case ctx.Err() != nil:
			return Placed{}, ctx.Err()
		case err == nil && status == http.StatusNotFound:
			return Placed{}, errors.New("the checkout has no POST /demo/checkouts, which -no-keys needs; is it an older one, or was that switched off?")
		case err == nil && status < 500 && status != http.StatusTooManyRequests:
			return Placed{}, fmt.Errorf("the checkout answered with status %d", status)
		case time.Now().After(deadline):
			return Placed{}, fmt.Errorf("there was no answer within %v; the last status was %d: %w", total, status, err)
		}
		select {
		case <-ctx.Done():
			return Placed{}, ctx.Err()
		case <-time.After(rand.N(4 * backoff)):
		}
	}
}

func (t *tally) try(status int) {
	t.tries.Add(1)
	if status == 0 {
		t.lost.Add(1)
	}
}
