// Package idempotency is the stage before the handler: it lets a marked command run once for each intent and gives every
// later attempt the recorded outcome.
//
// A command opts in by its type (rule pipe-4):
//
//	func (Place) Idempotent() {}
//
//	var _ idempotency.Marker = Place{} // the compiler checks the spelling
//
// The key comes from the request context and is never made up here (rules pipe-6, pipe-7). The stage stands behind
// validation, so an invalid command does not spend its key: corrected and sent again with the same key, it runs
// (rule pipe-3).
//
// # What is promised
//
// Effectively once, while the record lives (rule rec-11): in mode [Atomic] the claim, the business rows that the handler
// writes through the store's transaction, and the record share one commit. A crash leaves nothing, and a lost answer finds
// the recorded outcome. Effects outside that transaction are not covered.
//
// # How an attempt ends
//
//	the handler returned                the record                    the next attempt
//	a value                             completed, with the result    replays it
//	an error marked with [Final]        completed, with the refusal   replays it; the business rows are undone
//	any other error, or a panic         none: all is rolled back      runs
//	an error marked with [Unknown]      none; a fault of the handler  runs
//
// Where the database refuses an attempt because of a concurrent one, all of it is made again, the handler included, at most
// three times. So a handler must not change what its command points to; one that has done so is not run again.
//
// A marked command that a handler sends runs in the same transaction and under the same record: one intent, one record. If it
// fails and the handler goes on, what it wrote stays; a handler that wants it undone returns the error.
//
// The handler runs on a context detached from the request, with the policy's deadline: a client that hangs up does not
// stop work that it will ask for again.
package idempotency
