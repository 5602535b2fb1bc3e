package registry_test

import (
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
)

// lineOf is the message of a line and the fields that tell a fresh outcome from a replay.
func lineOf(e observer.LoggedEntry) string {
	fields := e.ContextMap()
	text := func(name string) string { s, _ := fields[name].(string); return s }
	replayed := "fresh"
	if fields["replayed"] == true {
		replayed = "replayed"
	}
	return strings.Join([]string{e.Message, text("outcome"), text("state"), replayed, text("request_id"), "of", text("original_request_id"), text("key")}, " ")
}

func linesOf(s *shop) (lines []string) {
	for _, e := range s.logs.TakeAll() {
		lines = append(lines, lineOf(e))
	}
	return lines
}

// Apache Fineract #6231: there, an audit hook before the key's hook made the third call fail. Here whoever looks from outside,
// and the log does, sees fresh, replayed, replayed.
func TestBR10_ThreeAttemptsAreLoggedAsFreshReplayedReplayed(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	first, _ := s.must(t, "attempt-1", theKey, s.pay())
	for _, id := range []string{"attempt-2", "attempt-3"} {
		if again, out := s.must(t, id, theKey, s.pay()); again != first || out.OriginalRequestID != "attempt-1" {
			t.Errorf("%s: %+v, %+v", id, again, out)
		}
	}
	equal(t, "lines", linesOf(s), []string{
		"command succeeded OK executed fresh attempt-1 of attempt-1 " + theKey,
		"command replayed OK replayed replayed attempt-2 of attempt-1 " + theKey,
		"command replayed OK replayed replayed attempt-3 of attempt-1 " + theKey,
	})
	if n := s.orders.Load(); n != 1 {
		t.Errorf("%d orders", n)
	}
	holds(t, s.store, 1, "cart-1 4990")
}

func TestBR10_ThreeAttemptsAtOnceAreOneFreshAndTwoReplayed(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	one, two := open(t, store), open(t, store) // two processes
	var wg sync.WaitGroup
	answers := make(chan placed, 3)
	for i, s := range []*shop{one, two, one} {
		wg.Go(func() {
			got, _ := s.must(t, "attempt-"+string(rune('1'+i)), theKey, s.pay())
			answers <- got
		})
	}
	wg.Wait()
	if a, b, c := <-answers, <-answers, <-answers; a != b || b != c {
		t.Errorf("the answers differ: %v, %v, %v", a, b, c)
	}
	fresh, replayed := 0, 0
	for _, line := range append(linesOf(one), linesOf(two)...) {
		switch {
		case strings.HasPrefix(line, "command succeeded OK executed fresh"):
			fresh++
		case strings.HasPrefix(line, "command replayed OK replayed replayed"):
			replayed++
		}
	}
	if fresh != 1 || replayed != 2 || one.orders.Load()+two.orders.Load() != 1 {
		t.Errorf("%d fresh and %d replayed lines, %d and %d orders", fresh, replayed, one.orders.Load(), two.orders.Load())
	}
	holds(t, store, 1, "cart-1 4990")
}

// KeeperHub #1849: there, a stored refusal was played back word for word and nothing told that nobody had been asked.
func TestBR40_AReplayedRefusalIsVisiblyAReplay(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	s.handle = fail(idempotency.Final(errDeclined))
	var texts []string
	for _, id := range []string{"attempt-1", "attempt-2", "attempt-3", "attempt-4"} {
		_, out, err := s.send(t, id, theKey, s.pay())
		wantCode(t, err, "PAYMENT_DECLINED")
		if out.Replayed != (id != "attempt-1") || out.OriginalRequestID != "attempt-1" {
			t.Errorf("%s: %+v", id, out)
		}
		texts = append(texts, err.Error())
	}
	for _, text := range texts {
		if text != texts[0] {
			t.Errorf("the refusals differ: %q", texts)
		}
	}
	equal(t, "lines", linesOf(s), []string{
		"command refused PAYMENT_DECLINED executed fresh attempt-1 of attempt-1 " + theKey,
		"command replayed PAYMENT_DECLINED replayed replayed attempt-2 of attempt-1 " + theKey,
		"command replayed PAYMENT_DECLINED replayed replayed attempt-3 of attempt-1 " + theKey,
		"command replayed PAYMENT_DECLINED replayed replayed attempt-4 of attempt-1 " + theKey,
	})
	if n := s.orders.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
	holds(t, s.store, 1)
}

// Every attempt that is refused is seen, whoever refused it (V11).
func TestV11_EveryRefusedAttemptHasItsLine(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	_ = s.attempt(t, "attempt-1", theKey, place{})
	_ = s.attempt(t, "attempt-2", "", s.pay())
	s.permit = refuse(errForbidden)
	_ = s.attempt(t, "attempt-3", theKey, s.pay())
	s.admit = refuse(errStranger)
	_ = s.attempt(t, "attempt-4", theKey, s.pay())
	equal(t, "lines", linesOf(s), []string{
		"command refused VALIDATION_FAILED  fresh attempt-1 of  " + theKey,
		"command refused IDEMPOTENCY_KEY_MISSING refused fresh attempt-2 of  ",
		"command refused FORBIDDEN  fresh attempt-3 of  " + theKey,
		"command refused UNAUTHENTICATED  fresh attempt-4 of  " + theKey,
	})
}
