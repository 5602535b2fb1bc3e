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
// Effectively once, while the record lives (rule rec-11). How, depends on the [Mode].
//
// [Atomic], the default: the claim, the business rows that the handler writes through the store's transaction, and the record share
// one commit. A crash leaves nothing, and a lost answer finds the recorded outcome. Effects outside that transaction are not
// covered, so its handlers call nobody.
//
// [Leased], for handlers that call the outside world:
//
//  1. The claim is committed before the handler runs, under a lease that is renewed while it does.
//  2. The handler asks for a [DownstreamKey] and calls out under it.
//  3. It opens its business transaction, the store's InTx. That locks the record first and makes sure that it is still this
//     attempt's; when the handler has returned, the same transaction completes it under the same condition.
//
// When the lease is over, the next request with the same payload may take the key over ([Takeover]). Nothing is taken from an
// attempt that is only slow: one that nobody has replaced completes normally, and one that was replaced can commit nothing, so
// business rows and record always agree. What no transaction can undo is the call of an attempt that died between 2 and 3. It is
// made again, and counts once only if the other side honours the downstream key, if a reconciler finds it ([Reconcile]), or if
// the policy leaves it to a person ([Refuse]).
//
// # How an attempt ends
//
//	the handler returned                Atomic                       Leased
//	a value                             completed, with the result   completed, with the result
//	an error marked with [Final]        completed, with the refusal  completed, with the refusal
//	any other error                     no record, all rolled back   failed
//	an error marked with [Unknown]      a fault; all rolled back     in progress until the lease is over
//	not at all (panic, runtime.Goexit)  no record, all rolled back   failed; after DownstreamKey in progress
//	an error after the deadline         no record, all rolled back   failed; after DownstreamKey in progress
//
// The business rows stay with a value and are undone in every other case. A completed record is replayed to the same payload and refused to every other. A failed one runs again for the same payload, at
// once; one in progress is told so, and may be taken over when its lease is over. Without a record every payload may run.
//
// Where the database refuses an attempt because of a concurrent one, all of it is made again, the handler included, at most
// three times; in Leased under the same claim. So a handler must not change what its command points to; one that has done so is
// not run again.
//
// The handler runs on a context detached from the request, with the policy's deadline: a client that hangs up does not
// stop work that it will ask for again. That of a Leased handler whose key was taken over ends with the cause [ErrLeaseLost].
//
// # What a record keeps
//
// The result is stored as JSON up to [Policy].ResultLimit, 256 KiB by default. A larger one is given to the first caller in full and
// not stored: the work is not done again, and a replay gets a [*ResultUnavailableError]. **A result is readable for everybody who can
// read the database, its backups and its replicas included, unless the policy says otherwise**: [OmitResult] stores nothing of it, for
// one-time secrets, and [SealResult] stores it encrypted by a [Sealer].
//
// A result belongs to the version of its contract ([Policy].Version). One that an older version has stored is read by a
// [ResultReader], or decoded as it is where there is none. What cannot be read or opened is a [*ResultError]; it never has the handler
// run again.
//
// Of the payload the record keeps a hash alone. Fields tagged idempotency:"secret" are in it through an HMAC, whose key is rotated by
// [Config].Secrets.
//
// # Commands that a handler sends
//
// A marked command that is sent inside an open transaction of another runs in it and under its record: one intent, one record. If
// it fails and the handler goes on, what it wrote stays; a handler that wants it undone returns the error. A Leased command cannot
// be sent there.
//
// One that a Leased handler sends before its business transaction has a record of its own, under a key that is derived from the
// parent's, so it is replayed when the parent runs again. Sent more than once it needs a [WithLabel] to tell the one from the
// other, and so do the items of a batch.
//
// # Afterwards
//
// An [Admin] shows records and frees what is stuck, [FindOperation] tells a caller how far its request has come, and a [Purger]
// removes what has expired.
package idempotency
