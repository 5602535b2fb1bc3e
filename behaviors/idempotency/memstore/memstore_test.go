package memstore_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) storetest.Fixture {
		store := memstore.New()
		return storetest.Fixture{
			Store:   store,
			NoHint:  memstore.NewWithConfig(memstore.Config{NoHint: true, Share: store}),
			Insert:  store.Insert,
			Rows:    func(testing.TB) []string { return store.Rows() },
			Records: func(testing.TB) int { return len(store.Records()) },
			Age:     func(_ testing.TB, d time.Duration) { store.Age(d) },
			Plant:   func(_ testing.TB, id idempotency.ID, rec idempotency.Record) { store.Put(id, rec) },
		}
	})
}

var _ = fmt.Sprint
var _ = context.Background
var _ = synctest.Test
