// Package registrytest is the kit by which an application proves its own commands, on the store that it uses. It is for tests only.
//
//	func TestPlace(t *testing.T) {
//		registrytest.Prove(t, registrytest.Case[orders.Place, orders.Placed]{
//			Open: func(t *testing.T) registrytest.System {
//				pool := pgtest.Pool(t) // an empty database for each check
//				…                      // pgstore.Migrate, and the application's own tables
//				return registrytest.System{
//					Config:   registry.Config{Store: pgstore.New(pool)},
//					Register: func(reg *registry.Registry) { registry.Handle(reg, orders.NewService(pool).Place) },
//					Rows:     func() int { return count(t, pool, "orders") },
//					Age:      pgtest.Age(t, pool),
//				}
//			},
//			Valid:   func() orders.Place { return orders.Place{CartID: "cart-1", Amount: 4990} },
//			Edited:  func() orders.Place { return orders.Place{CartID: "cart-1", Amount: 5990} },
//			Invalid: func() orders.Place { return orders.Place{CartID: "cart-1"} },
//		})
//	}
//
// The suite of package storetest is about a store. This one takes the store for granted and is about the handler: it finds the one
// that writes beside its transaction, calls out within it, or does not know its own retry.
//
// # What is checked
//
// For every marked command, each time by sending it through the whole pipeline and counting what is committed:
//
//   - the same request twice is one effect and one result (see-3); another payload under its key is a conflict (http-4); a second one
//     while the first runs does no work (rec-4); a caller that hangs up and tries again has one effect (see-3). As a control, as many intents
//     as there are keys are as many effects, and without a key nothing is done (pipe-7);
//   - a retry in another second is the same request: no time is in the payload (see-3);
//   - an invalid command spends no key and runs when it is corrected (pipe-3);
//   - an edited payload after a lost answer is a conflict, and the first outcome stands (see-3);
//   - sixteen at once to two processes are one effect (rec-2); a message that is delivered twice is handled once (msg-1);
//   - a process that dies after the claim, before the commit or after it, and a client that tries again: one effect (rec-1); the same for a
//     commit that fails in a process that lives on and may remember something;
//   - after its retention a key is new work, or refused where the policy says Tombstone (rec-10).
//
// For an Atomic command besides: it uses the transaction it is given and calls nothing outside. For a Leased one: it calls out before its
// transaction and under a downstream key that it has asked for before; the first answer of the outside gets lost (rec-11); the one who takes over dies as well; an attempt comes
// back after it was taken over (rec-5).
//
// What a policy says is not a fault: AnswerAccepted, Tombstone, OmitResult, KeyOptional, Reconcile. Where it leaves a key to a person (Takeover
// Refuse, MaxAttempts), the kit plays the person with idempotency.Admin.
//
// A handler that sends commands gets its bus by System.Built. Only the command that is proved dies; one that it sends and that has a record of its
// own needs a proof of its own.
//
// # What is not proved
//
// Effects that System.Rows and System.Outside do not count. Calls that are neither HTTP with the handler's context nor reported by [CalledOut]:
// package registry/vet reads the code for some of them. A stub in place of http.Transport makes no connection, so a call through it is not seen
// unless it calls CalledOut with the request's context. Where a reconciler calls: only what it does is counted. What an other side does that honours
// no key. Any answer but the first one that is lost.
//
// A command that sets a state (an upsert, a flag) has one row however often it is done: let Rows count a history of it, or what the handler
// adds, and where there is none, the completed records of the command. The same for a Leased command that writes no row.
//
// Invariants over several intents: two refunds of one order, under two keys and at once, may both read the old sum under READ COMMITTED. Lock
// the row that has the sum, or let the policy say Isolation Serializable.
//
// A result that is larger than ResultLimit is a fault here, also where it is meant so; such a policy should say OmitResult. An order that is written
// as pending after an answer was lost is a fault as well, because nobody can tell it from one that is wrong: return idempotency.Unknown.
//
// The store itself, a server that loses power, a network that is cut: those are for storetest and the stores' own tests.
package registrytest
