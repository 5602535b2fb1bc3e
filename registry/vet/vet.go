// Package vet looks for code around a tekil bus that compiles and loses money: a key that the server makes up, a statement that is not in
// the command's transaction, a provider that is called while the transaction is open.
//
// [Analyzers] are its rules, for any driver of golang.org/x/tools/go/analysis; the command tekilvet in the folder below runs them. Each
// has a section in docs/vet.md.
//
// What is not promised: that code without findings is right. A call is followed two levels deep, into functions of the same package and,
// through an interface of that package, into the methods of its types. Where a rule cannot tell, such as when a policy is not written as a
// literal, it is silent.
package vet

import "golang.org/x/tools/go/analysis"

// Analyzers are all rules.
var Analyzers = []*analysis.Analyzer{
	freshKey, poolInAtomic, outsideInAtomic, commitInHandler, unstableField, payloadInLog, lostDownstream, swallowedError,
}

const manual = "https://github.com/tekil-go/tekil/blob/main/docs/vet.md#"

var freshKey = &analysis.Analyzer{
	Name: "freshkey",
	URL:  manual + "freshkey",
	Doc: `report an idempotency key that the receiving side makes up

A key says that two requests are one intent. One that is made where the request
arrives differs in every request, so a customer who sends again because the
answer was lost has two orders, and nothing in the log looks wrong. Refuse a
request without a key, or take the id that the sender gave it (rules pipe-7,
msg-2).

Reported are a new UUID, random text or the current time as the argument of
requestctx.ParseKey, as msgedge.Message.ID and watermilledge.Out.ID, as the
Idempotency-Key header in a function that serves a request, and as the UUID of
a Watermill message in a method Unmarshal. Test files are left out, because a
test plays the sender; so is a key that the same function stores.`,
	Requires: []*analysis.Analyzer{facts},
	Run:      runFreshKey,
}

var poolInAtomic = handlerRule("poolinatomic", `report a statement of an Atomic handler that is not in its transaction

What a handler sends to the pool is committed at once, on another connection.
If the handler fails after that, or the process dies, the row stays and no
record says so: the request sent again writes it a second time. It also takes a
second connection while the first one is held, so a pool under load ends in
handlers that wait for each other. Send it through pgstore.DB(ctx, pool) or
sqlitestore.DB(ctx, db), which give the transaction that holds the record
(rule rec-1).

A read from a pool that is not the one given to the store is left out.`)

var outsideInAtomic = handlerRule("outsideinatomic", `report a call over the network in an Atomic handler

The transaction can be rolled back, the call cannot. If the commit fails after
the payment provider has said yes, the next attempt asks it again: two charges.
And while the network is waited for, a connection and the key are held. A
command that calls out is Leased: it calls under idempotency.DownstreamKey and
writes in InTx afterwards.`)

var commitInHandler = handlerRule("commitinhandler", `report a handler that ends the transaction itself

The rows and the record share one commit, and that is the whole guarantee. A
handler that commits by itself leaves rows without a record when the process
dies before the second commit, and the request sent again writes them twice.
The stores refuse it at run time (ErrNotYours, ErrEndedByText), which fails
the command for every customer. Return an error to undo, nil to commit; in a
Leased handler write within InTx. A savepoint, which is the Begin of such a
transaction, is the handler's own and is not reported.`)

var unstableField = &analysis.Analyzer{
	Name: "unstablefield",
	URL:  manual + "unstablefield",
	Doc: `report a field of a command that is another one in every attempt

A request sent again is recognised by its key and compared by the fingerprint of
its fields. A field that is set from the clock or at random when the command is
dispatched differs in the second attempt, which is then refused as a conflict:
the customer has paid and is told that the key belongs to something else. Set it
in the handler, take it from whoever sends the request, or tag it
idempotency:"-", which leaves it out of the fingerprint.

Reported are fields of marked commands without a Normalize method that are sent
with bus.Send. Test files are left out.`,
	Requires: []*analysis.Analyzer{facts},
	Run:      runUnstableField,
}

var payloadInLog = &analysis.Analyzer{
	Name: "payloadinlog",
	URL:  manual + "payloadinlog",
	Doc: `report a marked command that is written to a log whole

A command carries what the customer typed: names, addresses, card numbers. A log
is kept longer, copied further and read by more people than the database, and a
card number in it is an incident with a price. The pipeline logs each dispatch
without its payload already (rule see-1). Log the external reference, with
requestctx.From(ctx).SetExternalRef, or single fields.

Reported are zap, log/slog, log, and fmt's Print and Fprint to the standard streams. A command that says
itself what may be logged (zapcore.ObjectMarshaler, slog.LogValuer,
fmt.Stringer or fmt.Formatter, each for its logger) is not. Test files are left out.`,
	Requires: []*analysis.Analyzer{facts},
	Run:      runPayloadInLog,
}

var lostDownstream = handlerRule("lostdownstream", `report a Leased handler that calls out without a downstream key

A Leased handler can run again after the process died in the middle of the call.
The other side can tell the repetition from new work only by a key that is the
same in both attempts, which idempotency.DownstreamKey gives. Asking for it also
tells the stage that the handler has been outside: without it, a handler that
panics after the charge is taken for one that has done nothing, and the key is
free for a second charge at once.

Reported are calls through net/http, except where all that the handler makes are
GET and HEAD.`)

var swallowedError = handlerRule("swallowederror", `report a statement in a handler's transaction whose error is dropped

The record says "done" when the handler returns nil. If a statement failed and
nobody looked, the record is kept without the row, and every request sent again
gets the success of an order that does not exist. (On PostgreSQL the failed
statement spoils the transaction, so the command fails for good instead.)
Return the error.

Reported are Exec, ExecContext and CopyFrom, and Scan on the result of QueryRow.`)
