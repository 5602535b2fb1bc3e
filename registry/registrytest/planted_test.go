package registrytest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/registry/registrytest"
	"github.com/tekil-go/tekil/requestctx"
)

// atomically is a case with a handler of place.
func atomically(open func(t *testing.T) database, handler func(d database) func(context.Context, place) (placed, error)) func(t *testing.T) {
	return func(t *testing.T) {
		registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
			d := open(t)
			return d.system(func(reg *registry.Registry) { registry.Handle(reg, handler(d)) })
		}))
	}
}

// leased is a case with a handler of charge, and with a provider.
func leased(open func(t *testing.T) database, handler func(d database, p *provider) func(context.Context, charge) (placed, error)) func(t *testing.T) {
	return func(t *testing.T) {
		registrytest.Prove(t, caseOfCharge(func(t *testing.T) registrytest.System {
			d, p := open(t), &provider{}
			s := d.system(func(reg *registry.Registry) { registry.Handle(reg, handler(d, p)) })
			s.Outside = p.count
			return s
		}))
	}
}

// writes is a handler of any command that writes as write does.
func writes[C any](write func(ctx context.Context, id string) error) func(context.Context, C) (placed, error) {
	return func(ctx context.Context, _ C) (placed, error) {
		order := newOrder()
		return order, write(ctx, order.OrderID)
	}
}

// stamped has a random id that the method Normalize makes.
type stamped struct {
	Cart    string `json:"cart" validate:"required"`
	Attempt string `json:"attempt"`
}

func (stamped) CommandName() bus.Name[placed] { return "orders.stamped" }
func (stamped) Idempotent()                   {}
func (c stamped) Normalize() stamped {
	c.Attempt = rand.Text()
	return c
}

// numbered has a random id that its constructor makes.
type numbered struct {
	Cart      string `json:"cart" validate:"required"`
	RequestID string `json:"request_id"`
}

func (numbered) CommandName() bus.Name[placed] { return "orders.numbered" }
func (numbered) Idempotent()                   {}

func newNumbered(cart string) numbered { return numbered{cart, rand.Text()} }

// marshalled has a random id in its JSON.
type marshalled struct {
	Cart nonce `json:"cart"`
}

func (marshalled) CommandName() bus.Name[placed] { return "orders.marshalled" }
func (marshalled) Idempotent()                   {}

type nonce struct{ of string }

func (nonce) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%q", rand.Text()), nil }

// unmarked carries no mark.
type unmarked struct{ Cart string }

func (unmarked) CommandName() bus.Name[placed] { return "orders.unmarked" }

// untold has a field that its fingerprint does not tell.
type untold struct {
	Cart   string `json:"cart" validate:"required"`
	Amount int64  `json:"amount" idempotency:"-"`
}

func (untold) CommandName() bus.Name[placed] { return "orders.untold" }
func (untold) Idempotent()                   {}

// lax has its rule in the handler.
type lax struct {
	Cart   string `json:"cart"`
	Amount int64  `json:"amount"`
}

func (lax) CommandName() bus.Name[placed] { return "orders.lax" }
func (lax) Idempotent()                   {}

// list points to something that its handler may change.
type list struct {
	Items []string `json:"items" validate:"required"`
}

func (list) CommandName() bus.Name[placed] { return "orders.list" }
func (list) Idempotent()                   {}

// simple is a case without an invalid command, in memory.
func simple[C bus.Command[placed]](valid, edited func() C, handler func(d database) func(context.Context, C) (placed, error)) func(t *testing.T) {
	return func(t *testing.T) {
		registrytest.Prove(t, registrytest.Case[C, placed]{
			Open: func(t *testing.T) registrytest.System {
				d := inMemory(t)
				return d.system(func(reg *registry.Registry) { registry.Handle(reg, handler(d)) })
			},
			Valid: valid, Edited: edited, NothingInvalid: true,
		})
	}
}

func inserts[C any](d database) func(context.Context, C) (placed, error) { return writes[C](d.insert) }

// crowded is a store that takes a second attempt at once for another key, as one without a unique index does.
type crowded struct {
	*memstore.Store
	mu   sync.Mutex
	open bool
}

func (s *crowded) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open {
		return memstore.New().Begin(ctx, c)
	}
	tx, err := s.Store.Begin(ctx, c)
	s.open = err == nil
	return crowdedTransaction{tx, s}, err
}

func (s *crowded) Describe() string { return "crowded" }

type crowdedTransaction struct {
	idempotency.Transaction
	s *crowded
}

func (tx crowdedTransaction) over() {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	tx.s.open = false
}

func (tx crowdedTransaction) Complete(ctx context.Context, done idempotency.Completion) error {
	defer tx.over()
	return tx.Transaction.Complete(ctx, done)
}

func (tx crowdedTransaction) Rollback(ctx context.Context) {
	defer tx.over()
	tx.Transaction.Rollback(ctx)
}

// dated has the time in it, in seconds, and lets no duplicate wait.
type dated struct {
	Cart string `json:"cart" validate:"required"`
	At   int64  `json:"at"`
}

func (dated) CommandName() bus.Name[placed]   { return "orders.dated" }
func (dated) Idempotency() idempotency.Policy { return idempotency.Policy{Wait: -1} }

// oneForACart refuses a second order of a cart, whatever the key.
func oneForACart(d database) func(context.Context, place) (placed, error) {
	return func(ctx context.Context, cmd place) (placed, error) {
		if d.rows() > 0 {
			return placed{}, idempotency.Final(errors.New("this cart has an order"))
		}
		return placed{cmd.Cart}, d.insert(ctx, cmd.Cart)
	}
}

// naturally is a case with a handler of place that has a natural key, or says so, and with a Rows.
func naturally(says bool, rows func(d database) int, handler func(d database) func(context.Context, place) (placed, error)) func(t *testing.T) {
	return func(t *testing.T) {
		c := caseOfPlace(func(t *testing.T) registrytest.System {
			d := onPostgres(t)
			s := d.system(func(reg *registry.Registry) { registry.Handle(reg, handler(d)) })
			s.Rows = func() int { return rows(d) }
			return s
		})
		c.NaturalKey = says
		registrytest.Prove(t, c)
	}
}

// requestOwn is where a careless edge keeps the request's own context.
type requestOwn struct{}

// fault is a planted one.
type fault struct {
	prove func(t *testing.T)
	// failing are parts of the names of subtests that must fail.
	failing []string
	// says are sentences that must be there.
	says []string
}

func planted() map[string]fault {
	const (
		dies     = "a process that dies before the commit leaves nothing"
		inside   = "an Atomic handler writes through the transaction"
		out      = "a Leased handler calls out before its transaction"
		inCall   = "a process that dies in its call has asked for a downstream key"
		again    = "a commit that fails leaves nothing, and the same process does it again"
		intents  = "Rows counts what each intent does"
		second   = "a retry in another second is the same request"
		lost     = "the answer of the outside gets lost"
		twice    = "the same request sent twice is one intent"
		comeBack = "an attempt that comes back"
	)
	faults := map[string]fault{
		"writes through the pool": {
			atomically(onPostgres, func(d database) func(context.Context, place) (placed, error) { return writes[place](d.beside) }),
			[]string{dies, inside},
			[]string{"never asked for the transaction that it was given", "nothing was committed Rows counts 1 effect, and should count 0", "committed by itself"},
		},
		"writes through the pool of SQLite": {
			atomically(onSQLite, func(d database) func(context.Context, place) (placed, error) { return writes[place](d.beside) }),
			[]string{twice}, []string{"was not carried out", "let the handler write through sqlitestore.DB(ctx, db)"},
		},
		"commits a transaction of its own": {
			atomically(onPostgres, func(d database) func(context.Context, place) (placed, error) {
				return writes[place](func(ctx context.Context, id string) error {
					return errors.Join(d.text(ctx, `SELECT 1`), d.ownTx(ctx, id)) // it has used its own as well, so it is not detached
				})
			}),
			[]string{dies}, []string{"nothing was committed Rows counts 1 effect, and should count 0", "begin, commit and COMMIT nothing yourself"},
		},
		"sends COMMIT as text": {
			atomically(onPostgres, func(d database) func(context.Context, place) (placed, error) {
				return writes[place](func(ctx context.Context, id string) error {
					_ = errors.Join(d.insert(ctx, id), d.text(ctx, `COMMIT`))
					return nil
				})
			}),
			[]string{twice}, []string{"the handler committed or rolled back the transaction it was given"},
		},
		"a random id by a constructor": {
			simple(func() numbered { return newNumbered("1") }, func() numbered { return newNumbered("2") }, inserts[numbered]),
			[]string{twice}, []string{"Valid gives the field RequestID another value each time", "refused as a conflict, although it is the same request"},
		},
		"a random id by Normalize": {
			simple(func() stamped { return stamped{Cart: "1"} }, func() stamped { return stamped{Cart: "2"} }, inserts[stamped]),
			[]string{twice}, []string{"Normalize gives the field Attempt another value each time"},
		},
		"a random id by a marshaller": {
			simple(func() marshalled { return marshalled{nonce{"1"}} }, func() marshalled { return marshalled{nonce{"2"}} }, inserts[marshalled]),
			[]string{twice}, []string{"the application does not build", "MarshalJSON of registrytest_test.nonce gives one value two forms"},
		},
		"a field that the fingerprint leaves out": {
			simple(func() untold { return untold{"1", 1} }, func() untold { return untold{"1", 2} }, inserts[untold]),
			[]string{"another payload under the key is a conflict", "an edited payload after a lost answer"},
			[]string{"Edited, under the key of Valid, got a result (replayed) and no *idempotency.ConflictError"},
		},
		"changes what the command points to": {
			simple(func() list { return list{[]string{"a"}} }, func() list { return list{[]string{"b"}} }, func(d database) func(context.Context, list) (placed, error) {
				return func(ctx context.Context, cmd list) (placed, error) {
					cmd.Items[0] += " (done)"
					order := newOrder()
					return order, d.insert(ctx, order.OrderID)
				}
			}),
			[]string{"a message that is delivered twice"}, []string{"changes what the command points to"},
		},
		"calls out inside its transaction, over HTTP": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					d := inMemory(t)
					_, authorize := overHTTP(t)
					return d.system(func(reg *registry.Registry) {
						registry.Handle(reg, writes[place](func(ctx context.Context, id string) error {
							return errors.Join(d.insert(ctx, id), authorize(ctx, ""))
						}))
					})
				}))
			},
			[]string{inside}, []string{"called the outside 1 times within its transaction", "make it Leased"},
		},
		"calls out inside its transaction, to a fake that only counts": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					d, p := inMemory(t), &provider{}
					s := d.system(func(reg *registry.Registry) {
						registry.Handle(reg, writes[place](func(ctx context.Context, id string) error {
							return errors.Join(d.insert(ctx, id), p.authorize(context.Background(), ""))
						}))
					})
					s.Outside = p.count
					return s
				}))
			},
			[]string{inside}, []string{"did something outside within its transaction: Outside counts 1 effect"},
		},
		"writes before InTx": {
			leased(onPostgres, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				return func(ctx context.Context, _ charge) (placed, error) {
					key, err := idempotency.DownstreamKey(ctx, "authorize")
					if err == nil {
						err = p.authorize(ctx, key)
					}
					if err != nil {
						return placed{}, idempotency.Unknown(err)
					}
					order := newOrder()
					return order, d.insert(ctx, order.OrderID)
				}
			}),
			[]string{dies, comeBack, "a process that dies during a takeover"},
			[]string{"nothing was committed Rows counts 1 effect, and should count 0", "in a Leased handler within InTx", "the late one has committed beside the lease"},
		},
		"opens its transaction before it calls out": {
			leased(onPostgres, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				good := goodCharge(d, p.authorize)
				return func(ctx context.Context, cmd charge) (res placed, err error) {
					err = d.inTx(ctx, func(ctx context.Context) error {
						res, err = good(ctx, cmd)
						return err
					})
					return res, err
				}
			}),
			[]string{out}, []string{"it calls InTx before it calls out"},
		},
		"a key of its own for each attempt": {
			leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				return goodCharge(d, func(ctx context.Context, _ string) error { return p.authorize(ctx, rand.Text()) })
			}),
			[]string{dies, lost, comeBack}, []string{"Outside counts 2 effects, and should count 1", "no key of your own making"},
		},
		"no downstream key": {
			leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				return func(ctx context.Context, cmd charge) (placed, error) {
					if err := p.authorize(ctx, cmd.Cart); err != nil {
						return placed{}, idempotency.Unknown(err)
					}
					order := newOrder()
					return order, d.inTx(ctx, func(ctx context.Context) error { return d.insert(ctx, order.OrderID) })
				}
			}),
			[]string{inCall}, []string{"has not asked for an idempotency.DownstreamKey before"},
		},
		"a final refusal of an answer that was lost": {
			leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				good := goodCharge(d, p.authorize)
				return func(ctx context.Context, cmd charge) (placed, error) {
					res, err := good(ctx, cmd)
					if err != nil {
						err = idempotency.Final(errors.New("declined"))
					}
					return res, err
				}
			}),
			[]string{lost}, []string{"made a final refusal of that (idempotency.Final)", "the money is taken and there is no order"},
		},
		"a final refusal of an answer that was lost, over HTTP": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfCharge(func(t *testing.T) registrytest.System {
					d := inMemory(t)
					_, authorize := overHTTP(t)
					good := goodCharge(d, authorize)
					return d.system(func(reg *registry.Registry) {
						registry.Handle(reg, func(ctx context.Context, cmd charge) (placed, error) {
							res, err := good(ctx, cmd)
							if err != nil {
								err = idempotency.Final(errors.New("declined"))
							}
							return res, err
						})
					})
				}))
			},
			[]string{lost}, []string{"made a final refusal of that (idempotency.Final)"},
		},
		"an unmarked error of an answer that was lost": {
			leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				return func(ctx context.Context, _ charge) (placed, error) {
					if _, err := idempotency.DownstreamKey(ctx, "authorize"); err != nil {
						return placed{}, err
					}
					if err := p.authorize(ctx, ""); err != nil { // unmarked, and without the key
						return placed{}, err
					}
					order := newOrder()
					return order, d.inTx(ctx, func(ctx context.Context) error { return d.insert(ctx, order.OrderID) })
				}
			}),
			[]string{lost}, []string{"the answer of the outside was lost, and the handler returned an error that says that nothing has happened", "mark such an error with idempotency.Unknown(err)"},
		},
		"a downstream key after the call": {
			leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				return func(ctx context.Context, cmd charge) (placed, error) {
					err := p.authorize(ctx, cmd.Cart)
					_, keyErr := idempotency.DownstreamKey(ctx, "audit") // whatever became of the call
					if err = errors.Join(err, keyErr); err != nil {
						return placed{}, idempotency.Unknown(err)
					}
					order := newOrder()
					return order, d.inTx(ctx, func(ctx context.Context) error { return d.insert(ctx, order.OrderID) })
				}
			}),
			[]string{inCall}, []string{"has not asked for an idempotency.DownstreamKey before"},
		},
		"no downstream key, over HTTP": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfCharge(func(t *testing.T) registrytest.System {
					d := inMemory(t)
					_, authorize := overHTTP(t)
					return d.system(func(reg *registry.Registry) {
						registry.Handle(reg, func(ctx context.Context, cmd charge) (placed, error) {
							if err := authorize(ctx, cmd.Cart); err != nil {
								return placed{}, idempotency.Unknown(err)
							}
							order := newOrder()
							return order, d.inTx(ctx, func(ctx context.Context) error { return d.insert(ctx, order.OrderID) })
						})
					})
				}))
			},
			[]string{inCall}, []string{"has not asked for an idempotency.DownstreamKey before"},
		},
		"an unmarked error of an answer that was lost, under the right key": {
			leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				good := goodCharge(d, p.authorize)
				return func(ctx context.Context, cmd charge) (placed, error) {
					res, err := good(ctx, cmd)
					if err != nil {
						err = errors.New("the provider does not answer")
					}
					return res, err
				}
			}),
			[]string{lost}, []string{"returned an error that says that nothing has happened"},
		},
		"an answer that was lost is taken for a success": {
			leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				return goodCharge(d, func(ctx context.Context, key string) error {
					_ = p.authorize(ctx, key)
					return nil
				})
			}),
			[]string{lost}, []string{"the handler went on as if it knew what had happened"},
		},
		"an answer that was lost becomes an order that counts as failed": {
			leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				return func(ctx context.Context, _ charge) (placed, error) {
					key, err := idempotency.DownstreamKey(ctx, "authorize")
					if err != nil {
						return placed{}, err
					}
					order := newOrder()
					if p.authorize(ctx, key) != nil {
						order.OrderID = "declined-" + order.OrderID
						ctx = context.WithoutCancel(ctx)
					}
					return order, d.inTx(ctx, func(ctx context.Context) error { return d.insert(ctx, order.OrderID) })
				}
			}),
			[]string{lost}, []string{"the handler went on as if it knew what had happened"},
		},
		"remembers in its process, by the key": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					d := onPostgres(t)
					return d.system(func(reg *registry.Registry) {
						var seen sync.Map // one for each process
						registry.Handle(reg, func(ctx context.Context, _ place) (placed, error) {
							order := newOrder()
							if old, done := seen.LoadOrStore(requestctx.From(ctx).Key(), order); done {
								return old.(placed), nil
							}
							return order, d.insert(ctx, order.OrderID)
						})
					})
				}))
			},
			[]string{again}, []string{"after a commit that failed and a retry in the same process Rows counts 0 effects, and should count 1", "let nothing else remember what was done"},
		},
		"remembers in its process, by the key, and is Leased": {
			leased(inMemory, func(d database, p *provider) func(context.Context, charge) (placed, error) {
				var seen sync.Map
				good := goodCharge(d, p.authorize)
				return func(ctx context.Context, cmd charge) (placed, error) {
					if old, done := seen.Load(requestctx.From(ctx).Key()); done {
						return old.(placed), nil
					}
					res, err := good(ctx, cmd)
					if err == nil {
						seen.Store(requestctx.From(ctx).Key(), res)
					}
					return res, err
				}
			}),
			[]string{again}, []string{"after a commit that failed and a retry in the same process Rows counts 0 effects, and should count 1"},
		},
		"a fixture that bears one intent, and a blind Rows": {
			naturally(false, func(d database) int { return min(d.rows(), 1) }, oneForACart), []string{intents},
			[]string{"Edited, under a key of its own after Valid, was refused by the handler", "an order of 150 cannot bear refunds of 100, 200 and 100"},
		},
		"NaturalKey of a command that refuses nothing": {
			naturally(true, database.counted, inserts[place]), []string{intents}, []string{"NaturalKey is set, and Valid and Edited were carried out under a key each", "remove NaturalKey"},
		},
		"an application's wrapper calls out within the transaction": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					d := inMemory(t)
					_, authorize := overHTTP(t)
					s := d.system(func(reg *registry.Registry) { registry.Handle(reg, inserts[place](d)) })
					s.Config.Around = []registry.Around{func(ctx context.Context, _ bus.Invocation, next func(context.Context) error) error {
						if err := next(ctx); err != nil {
							return err
						}
						return authorize(ctx, "")
					}}
					return s
				}))
			},
			[]string{inside}, []string{"called the outside 1 times within its transaction"},
		},
		"seconds of the time in the payload": {
			simple(func() dated { return dated{"1", time.Now().Unix()} }, func() dated { return dated{"2", time.Now().Unix()} }, inserts[dated]),
			[]string{second}, []string{"sent again in another second, was refused as a conflict", "Valid gives the field At another value each time"},
		},
		"opens its transaction before it calls out, behind a child": {
			sends(inMemory, func(d database, p *provider, send func(context.Context) error) func(context.Context, charge) (placed, error) {
				good := goodCharge(d, p.authorize)
				return func(ctx context.Context, cmd charge) (res placed, err error) {
					if err := send(ctx); err != nil {
						return placed{}, err
					}
					err = d.inTx(ctx, func(ctx context.Context) error {
						res, err = good(ctx, cmd)
						return err
					})
					return res, err
				}
			}),
			[]string{out}, []string{"it calls InTx before it calls out"},
		},
		"a child that is sent under a key of its own making": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					d := onPostgres(t)
					return d.sending(func(reg *registry.Registry, b func() *bus.Bus) {
						registry.Handle(reg, inserts[noted](d))
						registry.Handle(reg, func(_ context.Context, cmd place) (placed, error) {
							key, err := requestctx.ParseKey("child-" + rand.Text())
							if err != nil {
								return placed{}, err
							}
							ctx, _ := requestctx.New(context.Background(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "child"}})
							return bus.Send(ctx, b(), noted{cmd.Cart})
						})
					})
				}))
			},
			[]string{dies}, []string{"nothing was committed Rows counts 1 effect, and should count 0"},
		},
		"Leased, and nobody sees it call": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfCharge(func(t *testing.T) registrytest.System {
					d, p := inMemory(t), &provider{}
					good := goodCharge(d, func(context.Context, string) error { return p.authorize(context.Background(), "hidden") })
					return d.system(func(reg *registry.Registry) { registry.Handle(reg, good) })
				}))
			},
			[]string{out}, []string{"no call to the outside was seen", "or say NothingOutside: true"},
		},
		"Outside that sees nothing": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfCharge(func(t *testing.T) registrytest.System {
					d, p := inMemory(t), &provider{}
					s := d.system(func(reg *registry.Registry) { registry.Handle(reg, goodCharge(d, p.authorize)) })
					s.Outside = func() int { return 0 }
					return s
				}))
			},
			[]string{twice}, []string{"Outside counts 0 effects, and should count 1", "let Outside count what the fake has done"},
		},
		"NothingOutside of a command that calls": {
			func(t *testing.T) {
				c := caseOfCharge(func(t *testing.T) registrytest.System {
					d, p := inMemory(t), &provider{}
					return d.system(func(reg *registry.Registry) { registry.Handle(reg, goodCharge(d, p.authorize)) })
				})
				c.NothingOutside = true
				registrytest.Prove(t, c)
			},
			[]string{out}, []string{"NothingOutside is set, and the handler called the outside"},
		},
		"a store that lets two in at once": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					s := memstore.New()
					d := database{store: &crowded{Store: s}, insert: s.Insert, rows: func() int { return len(s.Rows()) }, age: s.Age}
					return d.system(func(reg *registry.Registry) { registry.Handle(reg, inserts[place](d)) })
				}))
			},
			[]string{"a second request while the first one runs does no work", "a caller that hangs up and tries again has one effect"},
			[]string{"while the first one ran, a second one got a result (executed)", "of a caller that had hung up got a result (executed) while its first request ran"},
		},
		"remembers by itself what it has done": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					d, seen := inMemory(t), sync.Map{}
					return d.system(func(reg *registry.Registry) {
						registry.Handle(reg, func(ctx context.Context, cmd place) (placed, error) {
							if _, done := seen.LoadOrStore(cmd, true); done {
								return placed{}, nil
							}
							order := newOrder()
							return order, d.insert(ctx, order.OrderID)
						})
					})
				}))
			},
			[]string{dies, "Rows counts what each intent does"},
			[]string{"a client tried again until it had its answer, Rows counts 0 effects, and should count 1", "let nothing else remember what was done"},
		},
		"works on the request's own context": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					d := inMemory(t)
					s := d.system(func(reg *registry.Registry) {
						registry.Handle(reg, writes[place](func(ctx context.Context, id string) error {
							return errors.Join(d.insert(ctx, id), ctx.Value(requestOwn{}).(context.Context).Err())
						}))
					})
					s.Context = func(ctx context.Context) context.Context { return context.WithValue(ctx, requestOwn{}, ctx) }
					return s
				}))
			},
			[]string{"a caller that hangs up and tries again has one effect"}, []string{"the work of a caller that hung up ended with", "use the ctx that the handler is given"},
		},
		"no handler": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					return inMemory(t).system(func(*registry.Registry) {})
				}))
			},
			[]string{twice}, []string{"Register has registered no handler for it"},
		},
		"no mark": {
			simple(func() unmarked { return unmarked{"1"} }, func() unmarked { return unmarked{"2"} }, inserts[unmarked]),
			nil, []string{"it carries no idempotency mark", "give it func (unmarked) Idempotent() {}"},
		},
		"a rule in the handler": {
			func(t *testing.T) {
				registrytest.Prove(t, registrytest.Case[lax, placed]{
					Open: func(t *testing.T) registrytest.System {
						d := inMemory(t)
						return d.system(func(reg *registry.Registry) {
							registry.Handle(reg, func(ctx context.Context, cmd lax) (placed, error) {
								if cmd.Amount <= 0 {
									return placed{}, idempotency.Final(errors.New("the amount is too small"))
								}
								order := newOrder()
								return order, d.insert(ctx, order.OrderID)
							})
						})
					},
					Valid: func() lax { return lax{"1", 1} }, Edited: func() lax { return lax{"1", 2} }, Invalid: func() lax { return lax{"1", 0} },
				})
			},
			[]string{"an invalid command spends no key"}, []string{"the handler was called with Invalid", "there is 1 record under its key"},
		},
		"Rows that sees only the first": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					d := inMemory(t)
					s := d.system(func(reg *registry.Registry) { registry.Handle(reg, inserts[place](d)) })
					s.Rows = func() int { return min(d.rows(), 1) }
					return s
				}))
			},
			[]string{"Rows counts what each intent does"}, []string{"after 3 intents with a key each Rows counts 1 effect, and should count 3"},
		},
		"Rows that waits for the connection of the attempt": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					db := openSQLite(t)
					db.SetMaxOpenConns(1)
					d := onSQLiteOf(t, db)
					return d.system(func(reg *registry.Registry) { registry.Handle(reg, inserts[place](d)) })
				}))
			},
			[]string{"a second request while the first one runs does no work"},
			[]string{"Rows has not answered for 15s", "a pool of more than one connection"},
		},
		"Age that does nothing": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(t *testing.T) registrytest.System {
					d := inMemory(t)
					d.age = func(time.Duration) {}
					return d.system(func(reg *registry.Registry) { registry.Handle(reg, inserts[place](d)) })
				}))
			},
			[]string{"a key after its retention"}, []string{"let Age move expires_at as well"},
		},
		"a case with holes": {
			func(t *testing.T) {
				registrytest.Prove(t, registrytest.Case[place, placed]{Valid: validPlace, Edited: validPlace})
			},
			nil, []string{"Case.Open is nil", "or say NothingInvalid: true"},
		},
		"edited to the same": {
			func(t *testing.T) {
				registrytest.Prove(t, registrytest.Case[place, placed]{
					Open: func(*testing.T) registrytest.System { return registrytest.System{} }, Valid: validPlace, Edited: validPlace, NothingInvalid: true,
				})
			},
			nil, []string{"Case.Edited gives the same command as Case.Valid"},
		},
		"a system with holes": {
			func(t *testing.T) {
				registrytest.Prove(t, caseOfPlace(func(*testing.T) registrytest.System { return registrytest.System{} }))
			},
			[]string{twice}, []string{"Open has left System.Config.Store"},
		},
	}
	return faults
}

// plantedEnv names the fault that this process plants, in a child.
const plantedEnv = "TEKIL_REGISTRYTEST_PLANTED"

// A test that must fail has to run somewhere else: each fault is proved in a child process, whose failure is read here.
func TestPlanted(t *testing.T) {
	faults := planted()
	if name, child := os.LookupEnv(plantedEnv); child {
		t.Run("planted", faults[name].prove)
		return
	}
	t.Parallel()
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPlanted$", "-test.v")
			cmd.Env = append(os.Environ(), plantedEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if _, failed := errors.AsType[*exec.ExitError](err); !failed {
				t.Fatalf("the planted fault was not found (%v):\n%s", err, out)
			}
			for _, sub := range f.failing {
				if !regexp.MustCompile(`--- FAIL: TestPlanted/planted/` + strings.ReplaceAll(sub, " ", "_")).Match(out) {
					t.Errorf("the check %q has not failed:\n%s", sub, out)
				}
			}
			for _, sentence := range append(f.says, "registrytest: ") {
				if !strings.Contains(string(out), sentence) {
					t.Errorf("nothing says %q:\n%s", sentence, out)
				}
			}
		})
	}
}
