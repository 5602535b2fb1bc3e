// Package telemetry counts and traces every dispatch with OpenTelemetry.
//
// It is a [bus.Observer] like package logging: it is told what was dispatched and what became of it, and never holds the
// command. It imports the OpenTelemetry API alone; the application brings the SDK and the exporters.
//
// # Metrics (rule see-2)
//
// The names are those that a Prometheus exporter writes; [Metrics] is the same table for programs. Every one has the label
// command. The counters of a marked command stand at 0 from its first dispatch on, so that a rate can be taken of them.
//
// idempotency_replay_total: a stored outcome was given again. When it rises, answers get lost on the way or people press twice:
// look at the network, at time limits of clients and at the button. The work itself was not repeated.
//
// idempotency_conflict_total: a key came again with another payload. When it rises, a client takes one key for several intents,
// or puts something into the command that changes from try to try. Find the client in the log (state=conflict) and talk to its owner.
//
// checkout_created_total, for the command checkout.place: work that was really done, no replay and no refusal among it. The name is
// the first part of the command's; [Config.Created] names it otherwise. When it rises and idempotency_replay_total does not even
// though clients retry, then the keys do not arrive: look for a proxy that drops the header and a client that makes a key for each
// try. A command inside another one is counted when the outermost marked one has succeeded, because only then it is committed;
// one without the mark is counted at its own end. Where nobody can say whether the commit happened it is not counted.
//
// idempotency_in_progress_total: a duplicate came while the first attempt was running. When it rises, work takes longer than
// clients wait: make it faster, or the clients' time limit longer.
//
// idempotency_takeover_total: an attempt took the key over from one that had died or hung. When it rises, processes are killed in
// the middle of work or leases are too short.
//
// idempotency_lost_total: an attempt found that its key had been taken from it while it ran. When it rises, work takes longer than
// its lease, or processes stand still: give the command a longer lease.
//
// idempotency_expired_reuse_total: a key came again after its retention and was new work. When it rises, clients retry or brokers
// redeliver for longer than records are kept: lengthen the retention, or choose tombstones.
//
// idempotency_unprotected_total: a marked command that allows it ran without a key. When it rises, some client has lost its key;
// nothing protects it from running twice.
//
// idempotency_detached_total: an Atomic handler succeeded without the transaction that it was given. Any count is a fault of the
// handler: its work and its record do not share a commit. Mend the handler, or make the command strict.
//
// idempotency_unknown_total: nobody could say whether the work was done. The same key may be sent again. When it keeps rising,
// look at the database's connections and at what the handler calls.
//
// idempotency_second_effect_total: an effect outside of the database went out another time and that is accepted, such as a second
// mail. A handler says so with [SecondEffect]; nobody else can know. Its label effect names it. When it rises, look at why
// attempts fail after the effect; where a second one must not be, call the other side with a downstream key.
//
// tekil_dispatch_duration_seconds: a histogram by command, kind (command, query, check), outcome (OK, PANIC or the code that
// [bus.CodeOf] gives) and state (of the idempotency stage; none where it was not reached). Its count is the number of dispatches.
//
// tekil_dispatch_in_flight: how many dispatches run now, by command and kind. When it only rises, something hangs.
//
// Label values come from small sets. Codes and effects are the application's, so at most 100 distinct ones of each are taken for the
// life of an Observer, none longer than 64 bytes; others become "other". The codes of tekil itself do not count towards this. Keys,
// tenants, clients, request ids and error texts are never labels.
//
// # Spans
//
// A dispatch is a span with the command's name and of kind internal; server and consumer spans belong to the edge. A nested
// dispatch is a child span. Attributes: tekil.command, tekil.kind, tekil.outcome, tekil.state, tekil.replayed, tekil.attempt (of a
// Leased command), tekil.took_over, tekil.reused_expired, tekil.detached, tekil.request_id, tekil.original_request_id, and error.type
// with the outcome's code on a span whose status is an error. Of OpenTelemetry's conventions error.type is the only one used: those for
// messaging are not stable, and the pipeline does not know the function that code.function.name asks for.
//
// The status is an error for faults of the server only: panics, errors without a code, a store that is away, an outcome that nobody
// knows. Refusals, invalid commands, replays and callers that went away leave it unset. Its description is the outcome's code; an
// error's text and what was panicked with are never written.
//
// The stages are not timed. What is known of them at the end are events which all bear the time of the end: tekil.validation
// where validation refused, and tekil.idempotency with the state that the stage came to. How long a claim waited or a commit took is
// not to be seen; a handler's own spans and the database driver's show that. Only tekil.second_effect bears its own time.
//
// A replay's span has a link to the span that did the work, if that was sampled. The record holds its traceparent, so the link is there in
// every process and as long as the record. An attempt that died and was taken over is in no link: the record names the one that did the work.
//
// # What is not promised
//
// State and outcome are read from the request context. Commands that are sent at once on one request context share it, and
// each may be counted with what another one has come to; give each its own. A counter is memory of one process and forgets what it
// has counted when that dies, so the number of orders is in the database and not here.
//
// # Cost
//
// Without a provider a dispatch costs nothing. With metrics alone an Observer makes one allocation for each dispatch. With a tracer
// it is the tracer that costs.
package telemetry
