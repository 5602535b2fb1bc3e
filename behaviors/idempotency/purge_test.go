package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
)

// purging is a store that notes how it is purged, and can fail.
type purging struct {
	idempotency.Store
	fail func(n int) error

	mu      sync.Mutex
	batches []idempotency.PurgeBatch
	at      []time.Time
}

func (p *purging) Purge(ctx context.Context, b idempotency.PurgeBatch) (idempotency.Purged, error) {
	p.mu.Lock()
	p.batches, p.at = append(p.batches, b), append(p.at, time.Now())
	n := len(p.batches)
	p.mu.Unlock()
	if p.fail != nil {
		if err := p.fail(n); err != nil {
			return idempotency.Purged{}, err
		}
	}
	return p.Store.Purge(ctx, b)
}

// filled is a store with n completed records that have expired an hour ago, and one that has not.
func filled(n int, after idempotency.AfterExpiry) *memstore.Store {
	mem := memstore.New()
	for i := range n + 1 {
		s := idempotency.Scope{Client: "c", Operation: "test.pay", Key: fmt.Sprint("key-", i)}
		mem.Put(s.ID(), idempotency.Record{Scope: s, State: idempotency.Completed, AfterExpiry: after, Result: []byte("1"), ResultType: "result/0", Expired: i < n})
	}
	return mem
}

func newPurger(t *testing.T, cfg idempotency.PurgerConfig) (*idempotency.Purger, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	cfg.Logger = zap.New(core)
	p, err := idempotency.NewPurger(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p, logs
}

// wantPurgeLine demands one line at level Info with these numbers.
func wantPurgeLine(t *testing.T, logs *observer.ObservedLogs, removed, buried int) {
	t.Helper()
	all := logs.TakeAll()
	if len(all) != 1 || all[0].Level != zapcore.InfoLevel || all[0].ContextMap()["removed"] != int64(removed) || all[0].ContextMap()["buried"] != int64(buried) {
		t.Errorf("the lines are %+v, want one of %d removed and %d buried", all, removed, buried)
	}
}

func TestT10_OnePurgeTakesAllThatHasExpiredInBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := filled(25, idempotency.Reuse)
		store := &purging{Store: mem}
		p, logs := newPurger(t, idempotency.PurgerConfig{Store: store, Batch: 10, Pause: time.Second})
		start := time.Now()
		done, err := p.Once(t.Context())
		if err != nil || done != (idempotency.Purged{Removed: 25}) || len(mem.Records()) != 1 {
			t.Errorf("%+v, %v, %d are left", done, err, len(mem.Records()))
		}
		if len(store.batches) != 3 || time.Since(start) != 2*time.Second {
			t.Errorf("%d batches in %v", len(store.batches), time.Since(start))
		}
		wantPurgeLine(t, logs, 25, 0)
		if done, err = p.Once(t.Context()); err != nil || done != (idempotency.Purged{}) || logs.Len() != 0 {
			t.Errorf("where nothing has expired: %+v, %v, %d lines", done, err, logs.Len())
		}
	})
}

func TestT03_PurgeBuriesWhatIsRememberedAndRemovesItMuchLater(t *testing.T) {
	t.Parallel()
	mem := filled(5, idempotency.Tombstone)
	p, logs := newPurger(t, idempotency.PurgerConfig{Store: mem, Batch: 2, Pause: -1, Remember: 24 * time.Hour})
	if done, err := p.Once(t.Context()); err != nil || done != (idempotency.Purged{Buried: 5}) || len(mem.Records()) != 6 {
		t.Errorf("%+v, %v", done, err)
	}
	wantPurgeLine(t, logs, 0, 5)
	mem.Age(23*time.Hour + 30*time.Minute) // from the record's own expiry, an hour ago, and five minutes of grace
	if done, err := p.Once(t.Context()); err != nil || done != (idempotency.Purged{Removed: 5}) || len(mem.Records()) != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	wantPurgeLine(t, logs, 5, 0)
}

func TestPurgerHasDefaults(t *testing.T) {
	t.Parallel()
	forGood := time.Duration(1<<63 - 1)
	for name, tc := range map[string]struct {
		cfg  idempotency.PurgerConfig
		want idempotency.PurgeBatch
	}{
		"none set": {idempotency.PurgerConfig{}, idempotency.PurgeBatch{Limit: 2000, Grace: 5 * time.Minute, Remember: forGood}},
		"no grace": {idempotency.PurgerConfig{Grace: -1}, idempotency.PurgeBatch{Limit: 2000, Remember: forGood}},
		"all set":  {idempotency.PurgerConfig{Batch: 7, Grace: time.Hour, Remember: time.Minute}, idempotency.PurgeBatch{Limit: 7, Grace: time.Hour, Remember: time.Minute}},
	} {
		store := &purging{Store: memstore.New()}
		tc.cfg.Store = store
		p, err := idempotency.NewPurger(tc.cfg) // and no logger
		if err != nil {
			t.Fatal(name, err)
		}
		if _, err := p.Once(t.Context()); err != nil || len(store.batches) != 1 || store.batches[0] != tc.want {
			t.Errorf("%s: %+v, %v", name, store.batches, err)
		}
	}
}

func TestNewPurgerRefusesSettingsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	for name, cfg := range map[string]idempotency.PurgerConfig{
		"no store": {}, "a negative interval": {Store: mem, Every: -1}, "a negative batch": {Store: mem, Batch: -1}, "a negative memory": {Store: mem, Remember: -1},
	} {
		if p, err := idempotency.NewPurger(cfg); p != nil || err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestPurgerRunsEveryMinuteAndStopsWhenItIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &purging{Store: filled(3, idempotency.Reuse)}
		p, logs := newPurger(t, idempotency.PurgerConfig{Store: store})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		start := time.Now()
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(2*time.Minute + 30*time.Second)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(store.at) != 3 || time.Since(start) != 2*time.Minute+30*time.Second {
			t.Errorf("it ran at %v and stopped after %v", store.at, time.Since(start))
		}
		for i, at := range store.at {
			if at.Sub(start) != time.Duration(i)*time.Minute {
				t.Errorf("run %d came after %v", i, at.Sub(start))
			}
		}
		wantPurgeLine(t, logs, 3, 0)
	})
}

func TestPurgerWhoseStoreFailsTriesAgainLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := filled(25, idempotency.Reuse)
		store := &purging{Store: mem, fail: func(n int) error {
			if n == 2 || n == 3 {
				return errDown
			}
			return nil
		}}
		p, logs := newPurger(t, idempotency.PurgerConfig{Store: store, Batch: 10, Every: time.Hour})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		synctest.Wait()
		time.Sleep(time.Minute)
		all := logs.TakeAll() // what was done until then is told
		if len(all) != 2 || all[0].ContextMap()["removed"] != int64(10) || all[1].Level != zapcore.WarnLevel || all[1].ContextMap()["error"] != errDown.Error() {
			t.Errorf("the lines are %+v", all)
		}
		time.Sleep(time.Hour)
		if all = logs.TakeAll(); len(all) != 1 || all[0].Level != zapcore.WarnLevel {
			t.Errorf("the lines are %+v", all)
		}
		time.Sleep(time.Hour)
		wantPurgeLine(t, logs, 15, 0)
		stop()
		if err := <-ended; err != nil || len(mem.Records()) != 1 {
			t.Error(err)
		}
	})
}

func TestPurgerThatIsStoppedInTheMiddleStopsAtOnceAndWithoutAComplaint(t *testing.T) {
	t.Parallel()
	for name, inBatch := range map[string]bool{"in a batch": true, "between two": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				mem := filled(25, idempotency.Reuse)
				store := &purging{Store: mem, fail: func(n int) error {
					if inBatch && n == 2 {
						stop()
					}
					return nil
				}}
				p, logs := newPurger(t, idempotency.PurgerConfig{Store: store, Batch: 10, Pause: time.Minute})
				if !inBatch {
					time.AfterFunc(30*time.Second, stop)
				}
				if err := p.Run(ctx); err != nil {
					t.Error(err)
				}
				wantPurgeLine(t, logs, 10, 0)
				stop()
				if done, err := p.Once(ctx); !errors.Is(err, context.Canceled) || done != (idempotency.Purged{}) {
					t.Error(done, err)
				}
			})
		})
	}
}

func TestOnceThatIsCutShortTellsWhatItHasDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
		defer stop()
		p, _ := newPurger(t, idempotency.PurgerConfig{Store: filled(100, idempotency.Reuse), Batch: 10, Pause: time.Minute})
		done, err := p.Once(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || done.Removed != 20 {
			t.Error(done, err)
		}
	})
}

func TestSeveralPurgersOnOneStoreShareTheWork_T10(t *testing.T) {
	t.Parallel()
	mem := filled(1000, idempotency.Reuse)
	var mu sync.Mutex
	total := 0
	var wg sync.WaitGroup
	for range 4 {
		p, _ := newPurger(t, idempotency.PurgerConfig{Store: memstore.NewWithConfig(memstore.Config{Share: mem}), Batch: 20, Pause: -1})
		wg.Go(func() {
			for range 2 { // and one purger may be used twice at once
				wg.Go(func() {
					done, err := p.Once(t.Context())
					mu.Lock()
					defer mu.Unlock()
					if total += done.Removed; err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
	if total != 1000 || len(mem.Records()) != 1 {
		t.Errorf("%d removed, %d left", total, len(mem.Records()))
	}
}

func TestGraceKeepsARecordThatHasJustExpired(t *testing.T) {
	t.Parallel()
	mem := filled(1, idempotency.Reuse) // expired an hour ago
	p, _ := newPurger(t, idempotency.PurgerConfig{Store: mem, Grace: 2 * time.Hour})
	if done, err := p.Once(t.Context()); err != nil || done.Removed != 0 {
		t.Error(done, err)
	}
	mem.Age(time.Hour)
	if done, err := p.Once(t.Context()); err != nil || done.Removed != 1 {
		t.Error(done, err)
	}
}

// partial is a store that has done a part of what it fails.
type partial struct{ idempotency.Store }

func (partial) Purge(context.Context, idempotency.PurgeBatch) (idempotency.Purged, error) {
	return idempotency.Purged{Buried: 3}, errDown
}

func TestPartOfABatchThatFailedIsTold(t *testing.T) {
	t.Parallel()
	p, logs := newPurger(t, idempotency.PurgerConfig{Store: partial{memstore.New()}})
	if done, err := p.Once(t.Context()); err != errDown || done.Buried != 3 {
		t.Error(done, err)
	}
	wantPurgeLine(t, logs, 0, 3)
}
