package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// The timeout test of see-3, at a tenth of its times: the provider sleeps 3.5 s, and a client cuts at 3 s and tries four times. Waiting is
// what is tested here, so this one waits.
const (
	farSleeps   = 3500 * time.Millisecond
	clientWaits = 3 * time.Second
	tries       = 4
)

// insist is such a client: it cuts a try that takes too long, and sends the same again, after the wait that an answer asks for.
func insist(t *testing.T, base, key string) (answers []answer, cuts int) {
	t.Helper()
	for range tries {
		ctx, cancel := context.WithTimeout(within(t), clientWaits)
		a, err := send(ctx, base, key, payment("cart-1", 4990))
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			cuts++
		case err != nil:
			t.Fatal(err)
		default:
			answers = append(answers, a)
			if after, err := strconv.Atoi(a.header.Get("Retry-After")); err == nil {
				<-time.After(time.Duration(after) * time.Second)
			}
		}
	}
	return answers, cuts
}

// start the program with the provider that it brings.
func startEmbedded(t *testing.T, d *database, flags ...string) *process {
	t.Helper()
	return start(t, append(append(d.flags(), "-provider", "embedded", "-provider-db", filepath.Join(t.TempDir(), "far.db")), flags...)...)
}

// held asks the checkout what its provider holds.
func held(t *testing.T, base string) (h Held) {
	t.Helper()
	if a := get(t, base+"/provider/authorizations"); json.Unmarshal(a.body, &h) != nil || a.status != http.StatusOK {
		t.Fatalf("%v", a)
	}
	return h
}

func TestSee3_WithAKeyAClientThatCutsTooEarlyPaysOnce_L21(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := startEmbedded(t, d, "-provider-delay", farSleeps.String())
		answers, cuts := insist(t, server.base, d.key("cut-too-early"))
		if cuts != 1 || len(answers) != tries-1 {
			t.Errorf("%d cuts and the answers %v", cuts, answers)
		}
		for i, a := range answers { // the work goes on, whatever the client has done, and is not done again
			if !a.busy() && a.replayed() != "true" {
				t.Errorf("try %d: %v", i+2, a)
			}
		}
		last := answers[len(answers)-1]
		order := last.placed(t)
		if last.replayed() != "true" {
			t.Errorf("the last answer: %v", last)
		}
		agree(t, server.base, held(t, server.base).Authorizations)
		if h := held(t, server.base); h.Total != 1 || h.Authorizations[0].ID != order.AuthID {
			t.Errorf("the provider holds %+v", h)
		}
		d.settles(t, 1)
	})
}

func TestSee3_WithoutAKeySuchAClientPaysForEveryTry(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := startEmbedded(t, d, "-provider-delay", farSleeps.String(), "-no-keys")
		answers, cuts := insist(t, server.base, d.key("cut-too-early"))
		if cuts != tries || len(answers) != 0 {
			t.Errorf("%d cuts and the answers %v", cuts, answers)
		}
		if h := held(t, server.base); h.Total != tries {
			t.Errorf("the provider holds %+v", h)
		}
		for ctx := within(t); d.count(t, `SELECT count(*) FROM orders`) < tries; { // the last one is still under way
			if ctx.Err() != nil {
				t.Fatal("the orders do not come")
			}
		}
		d.holds(t, tries, 0)
	})
}
