package registrytest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
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
	naturally(true, database.counted, oneForACart)(t)
}

// One that looks at its natural key before it calls out calls nothing the second time.
func TestALeasedCommandThatLooksAtItsNaturalKeyFirstPasses(t *testing.T) {
	t.Parallel()
	c := caseOfCharge(func(t *testing.T) registrytest.System {
		d, p := inMemory(t), &provider{}
		good := goodCharge(d, p.authorize)
		s := d.system(func(reg *registry.Registry) {
			registry.Handle(reg, func(ctx context.Context, cmd charge) (placed, error) {
				if d.rows() > 0 {
					return placed{}, idempotency.Final(errors.New("this cart has an order"))
				}
				return good(ctx, cmd)
			})
		})
		s.Outside = p.count
		return s
	})
	c.NaturalKey = true
	registrytest.Prove(t, c)
}

// noted is a command that another one sends, and settled one that is Leased.
type noted struct {
	Cart string `json:"cart"`
}

func (noted) CommandName() bus.Name[placed] { return "orders.noted" }
func (noted) Idempotent()                   {}

type settled struct {
	Cart string `json:"cart"`
}

func (settled) CommandName() bus.Name[placed] { return "orders.settled" }
func (settled) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased}
}

// sends is a case with a handler of charge that sends a Leased and an Atomic command before its own work. The Leased one calls out as
// well, under a key of its own.
func sends(open func(t *testing.T) database, handler func(d database, p *provider, send func(context.Context) error) func(context.Context, charge) (placed, error)) func(t *testing.T) {
	return func(t *testing.T) {
		registrytest.Prove(t, caseOfCharge(func(t *testing.T) registrytest.System {
			d, p := open(t), &provider{}
			s := d.sending(func(reg *registry.Registry, b func() *bus.Bus) {
				registry.Handle(reg, func(context.Context, noted) (placed, error) { return newOrder(), nil })
				registry.Handle(reg, func(ctx context.Context, _ settled) (placed, error) {
					key, err := idempotency.DownstreamKey(ctx, "settle")
					if err == nil {
						err = idempotency.Unknown(p.authorize(ctx, key))
					}
					return newOrder(), err
				})
				registry.Handle(reg, handler(d, p, func(ctx context.Context) error {
					_, err := bus.Send(ctx, b(), settled{"cart-1"})
					if err == nil {
						_, err = bus.Send(ctx, b(), noted{"cart-1"})
					}
					return err
				}))
			})
			s.Outside = p.count
			return s
		}))
	}
}

func TestALeasedHandlerThatSendsCommandsBeforeItsOwnWorkPasses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, open func(t *testing.T) database) {
		sends(open, func(d database, p *provider, send func(context.Context) error) func(context.Context, charge) (placed, error) {
			good := goodCharge(d, p.authorize)
			return func(ctx context.Context, cmd charge) (placed, error) {
				if err := send(ctx); err != nil {
					return placed{}, err
				}
				return good(ctx, cmd)
			}
		})(t)
	})
}

func TestAnAtomicHandlerThatLetsAnotherCommandWritePasses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, open func(t *testing.T) database) {
		registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
			d := open(t)
			return d.sending(func(reg *registry.Registry, b func() *bus.Bus) {
				registry.Handle(reg, inserts[noted](d))
				registry.Handle(reg, func(ctx context.Context, cmd place) (placed, error) { return bus.Send(ctx, b(), noted{cmd.Cart}) })
			})
		}))
	})
}

// Two effects outside are what one intent does.
func TestALeasedHandlerWithTwoEffectsOutsidePasses(t *testing.T) {
	t.Parallel()
	leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
		return func(ctx context.Context, _ charge) (placed, error) {
			for _, label := range []string{"reserve", "capture"} {
				key, err := idempotency.DownstreamKey(ctx, label)
				if err != nil {
					return placed{}, err
				}
				if err := p.authorize(ctx, key); err != nil {
					return placed{}, idempotency.Unknown(err)
				}
			}
			order := newOrder()
			return order, d.inTx(ctx, func(ctx context.Context) error { return d.insert(ctx, order.OrderID) })
		}
	})(t)
}

// A handler that asks again under the same key, and gets its answer, has lost nothing.
func TestALeasedHandlerThatAsksAgainByItselfPasses(t *testing.T) {
	t.Parallel()
	leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
		return goodCharge(d, func(ctx context.Context, key string) (err error) {
			for range 3 {
				if err = p.authorize(ctx, key); err == nil {
					break
				}
			}
			return err
		})
	})(t)
}

// quick has a deadline that is shorter than its duplicates wait.
type quick struct {
	Cart string `json:"cart" validate:"required"`
}

func (quick) CommandName() bus.Name[placed] { return "orders.quick" }
func (quick) Idempotency() idempotency.Policy {
	return idempotency.Policy{Wait: 3 * time.Second, Deadline: 2 * time.Second}
}

func TestACommandWithAShortDeadlineAndALongWaitPasses(t *testing.T) {
	t.Parallel()
	registrytest.Prove(t, registrytest.Case[quick, placed]{
		Open: func(t *testing.T) registrytest.System {
			d := onPostgres(t)
			return d.system(func(reg *registry.Registry) { registry.Handle(reg, inserts[quick](d)) })
		},
		Valid: func() quick { return quick{"1"} }, Edited: func() quick { return quick{"2"} }, Invalid: func() quick { return quick{} },
	})
}

func TestADuplicateThatGetsNoConnectionInItsTimeIsNoFaultOfTheCommand(t *testing.T) {
	t.Parallel()
	type starved struct{}
	var n atomic.Int64
	registrytest.Prove(t, registrytest.Case[quick, placed]{
		Open: func(t *testing.T) registrytest.System {
			cfg := pgtest.Open(t).PoolConfig()
			cfg.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) {
				if ctx.Value(starved{}) == nil {
					return true, nil
				}
				n.Add(1)
				<-ctx.Done()
				return true, ctx.Err()
			}
			d := onPostgresOf(t, pgtest.NewPool(t, cfg))
			sys := d.system(func(reg *registry.Registry) { registry.Handle(reg, inserts[quick](d)) })
			sys.Context = func(ctx context.Context) context.Context {
				if until, ok := ctx.Deadline(); ok && time.Until(until) <= time.Second { // what is sent while a handler is held
					return context.WithValue(ctx, starved{}, true)
				}
				return ctx
			}
			return sys
		},
		Valid: func() quick { return quick{"1"} }, Edited: func() quick { return quick{"2"} }, Invalid: func() quick { return quick{} },
	})
	t.Cleanup(func() {
		if n.Load() == 0 {
			t.Error("no duplicate was kept from its connection")
		}
	})
}
