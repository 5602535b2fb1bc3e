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
//   - an invalid command spends no key and runs when it is corrected (pipe-3);
//   - an edited payload after a lost answer is a conflict, and the first outcome stands (see-3);
//   - sixteen at once to two processes are one effect (rec-2); a message that is delivered twice is handled once (msg-1);
//   - a process that dies after the claim, before the commit or after it, and a client that tries again: one effect (rec-1);
//   - after its retention a key is new work, or refused where the policy says Tombstone (rec-10).
//
// For an Atomic command besides: it uses the transaction it is given and calls nothing outside. For a Leased one: it calls out before its
// transaction and under a downstream key; the answer of the outside gets lost (rec-11); the one who takes over dies as well; an attempt comes
// back after it was taken over (rec-5).
//
// What a policy says is not a fault: AnswerAccepted, Tombstone, OmitResult, KeyOptional, Reconcile. Where it leaves a key to a person (Takeover
// Refuse, MaxAttempts), the kit plays the person with idempotency.Admin.
//
// # What is not proved
//
// Effects that System.Rows and System.Outside do not count. Calls that are neither HTTP with the handler's context nor reported by [CalledOut]:
// package registry/vet reads the code for some of them. Where a reconciler calls: only what it does is counted. What an other side does that honours no key. The store itself, a server that loses power, a
// network that is cut: those are for storetest and the stores' own tests.
package registrytest
