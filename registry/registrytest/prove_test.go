package registrytest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/registry/registrytest"
)

func TestAnAtomicHandlerThatWritesThroughItsTransactionPasses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, open func(t *testing.T) database) {
		registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
			d := open(t)
			return d.system(func(reg *registry.Registry) {
				registry.Handle(reg, func(ctx context.Context, _ place) (placed, error) {
					order := newOrder()
					return order, d.insert(ctx, order.OrderID)
				})
			})
		}))
	})
}

// goodCharge calls out under a downstream key, says what it does not know, and writes within InTx.
func goodCharge(d database, authorize func(ctx context.Context, key string) error) func(ctx context.Context, _ charge) (placed, error) {
	return func(ctx context.Context, _ charge) (placed, error) {
		key, err := idempotency.DownstreamKey(ctx, "authorize")
		if err != nil {
			return placed{}, err
		}
		if err := authorize(ctx, key); err != nil {
			return placed{}, idempotency.Unknown(err)
		}
		order := newOrder()
		return order, d.inTx(ctx, func(ctx context.Context) error { return d.insert(ctx, order.OrderID) })
	}
}

func TestALeasedHandlerThatCallsOutUnderADownstreamKeyPasses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, open func(t *testing.T) database) {
		registrytest.Prove(t, caseOfCharge(func(t *testing.T) registrytest.System {
			d, p := open(t), &provider{}
			s := d.system(func(reg *registry.Registry) { registry.Handle(reg, goodCharge(d, p.authorize)) })
			s.Outside = p.count
			return s
		}))
	})
}

// overHTTP is a provider behind a server, without a word to the kit.
func overHTTP(t *testing.T) (p *provider, authorize func(ctx context.Context, key string) error) {
	p = &provider{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = p.authorize(context.Background(), r.Header.Get("Idempotency-Key"))
	}))
	t.Cleanup(server.Close)
	client := server.Client()
	return p, func(ctx context.Context, key string) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Idempotency-Key", key)
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return errors.Join(err, answer.Body.Close())
	}
}

func TestALeasedHandlerThatCallsOutOverHTTPPasses(t *testing.T) {
	t.Parallel()
	registrytest.Prove(t, caseOfCharge(func(t *testing.T) registrytest.System {
		d := inMemory(t)
		p, authorize := overHTTP(t)
		s := d.system(func(reg *registry.Registry) { registry.Handle(reg, goodCharge(d, authorize)) })
		s.Outside = p.count
		return s
	}))
}

// left is Leased and leaves a doubtful key to a person; its record keeps no result, and an expired key is refused for good.
type left struct {
	Cart   string `json:"cart" validate:"required"`
	Amount int64  `json:"amount" validate:"gt=0"`
}

func (left) CommandName() bus.Name[placed] { return "orders.left" }
func (left) Idempotency() idempotency.Policy {
	return idempotency.Policy{
		Mode: idempotency.Leased, Takeover: idempotency.Refuse, Duplicate: idempotency.AnswerAccepted, MaxAttempts: 2,
		AfterExpiry: idempotency.Tombstone, Results: idempotency.OmitResult, KeyOptional: true,
	}
}

func TestTheAnswersOfAPolicyAreNoFaults(t *testing.T) {
	t.Parallel()
	registrytest.Prove(t, registrytest.Case[left, placed]{
		Open: func(t *testing.T) registrytest.System {
			d, p := inMemory(t), &provider{}
			s := d.system(func(reg *registry.Registry) {
				charge := goodCharge(d, p.authorize)
				registry.Handle(reg, func(ctx context.Context, _ left) (placed, error) {
					if _, protected := idempotency.Attempt(ctx); !protected {
						return newOrder(), nil
					}
					return charge(ctx, validCharge())
				})
			})
			s.Outside = p.count
			s.Config.RequireTenant = true
			return s
		},
		Valid:          func() left { return left{"cart-1", 1} },
		Edited:         func() left { return left{"cart-1", 2} },
		NothingInvalid: true,
	})
}

// reconciled is Leased and asks the other side first.
type reconciled struct {
	Cart string `json:"cart" validate:"required"`
}

func (reconciled) CommandName() bus.Name[placed] { return "orders.reconciled" }
func (reconciled) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Takeover: idempotency.Reconcile}
}

func TestACommandWithAReconcilerPasses(t *testing.T) {
	t.Parallel()
	registrytest.Prove(t, registrytest.Case[reconciled, placed]{
		Open: func(t *testing.T) registrytest.System {
			d, p := onSQLite(t), &provider{}
			s := d.system(func(reg *registry.Registry) {
				work := goodCharge(d, p.authorize)
				registry.Handle(reg, func(ctx context.Context, _ reconciled) (placed, error) { return work(ctx, validCharge()) },
					registry.Reconcile(func(ctx context.Context, _ reconciled) (placed, bool, error) {
						key, err := idempotency.DownstreamKey(ctx, "authorize")
						if err != nil || !p.knows(key) {
							return placed{}, false, err
						}
						order := newOrder()
						return order, true, d.inTx(ctx, func(ctx context.Context) error { return d.insert(ctx, order.OrderID) })
					}))
			})
			s.Outside = p.count
			return s
		},
		Valid:   func() reconciled { return reconciled{"cart-1"} },
		Edited:  func() reconciled { return reconciled{"cart-2"} },
		Invalid: func() reconciled { return reconciled{} },
	})
}

// A natural key refuses a second order of the cart, under whatever key.
func TestACommandWithANaturalKeyPasses(t *testing.T) {
	t.Parallel()
	c := caseOfPlace(func(t *testing.T) registrytest.System {
		d := onPostgres(t)
		return d.system(func(reg *registry.Registry) {
			registry.Handle(reg, func(ctx context.Context, cmd place) (placed, error) {
				var n int
				if n = d.rows(); n > 0 {
					return placed{}, idempotency.Final(errors.New("this cart has an order"))
				}
				return placed{cmd.Cart}, d.insert(ctx, cmd.Cart)
			})
		})
	})
	registrytest.Prove(t, c)
}
