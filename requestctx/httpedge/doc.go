// Package httpedge is the way in over HTTP: it turns a request's headers into the request context that the pipeline reads, and
// what became of the dispatch into a status, headers and a body.
//
//	e, err := httpedge.New(httpedge.Config{Principal: principalOf})
//	place, err := httpedge.Command(e, b, "POST /v1/orders", httpedge.Options[checkout.Place, checkout.Placed]{
//		Status:   http.StatusCreated,
//		Location: func(p checkout.Placed) string { return "/v1/orders/" + p.OrderID },
//	})
//	mux.Handle("POST /v1/orders", place)
//
// The handlers are plain [http.Handler] values and need no adapter: they are mounted on an [http.ServeMux] and on chi as they
// are, and on echo by echo.WrapHandler.
//
// # The key
//
// Idempotency-Key is the only source of a key (rule http-1), and it is never made up here (rule pipe-7). More than one header
// line is refused, even when the lines are equal. The form of the IETF draft, a string in double quotes, is unwrapped and is
// the same key as the bare one; parameters and escapes are refused. A key that is refused is only an error for a command that
// is marked: others ignore the header, as do GET and HEAD. The names of our own answer headers mean nothing on the way in.
//
// # Which requests share a key
//
// The method and the route's pattern are part of the key's scope, and the concrete values of the pattern's parameters are part
// of the payload's fingerprint. So one key on two routes is two intents, and one key for two resources of one route is a
// conflict. The pattern is given to the handler and not read from the request, because each router has its own idea of it.
// Patterns of net/http ({id}, {rest...}, a final slash), chi ({id}, {id:regexp}, *) and echo (:id, *) are understood.
//
// A path whose fixed parts are not written like the pattern's, in another letter case or with a final slash more or less,
// reaches the handler only where a router is lax. It then counts as another resource: the same key is answered with a
// conflict and never with the other path's outcome. The query string is no part of the resource; what a Fill takes from it
// into the command is part of the payload like any other field.
//
// # Formats and files
//
// Bodies are JSON unless the configuration names other formats, such as [XML] beside it. Key and fingerprint do not know in which
// format a command has come, so a retry may come in another one, and is answered in the one that its Accept header asks for.
// A route with [Options].File takes forms with files as well; a file enters the fingerprint by its size and its SHA-256.
//
// A body has to have a type that no plain HTML form can send, or, for a form with files, a key or an origin that is the server's
// own. A route without a body ([Options].EmptyBody) of a command that needs no key has no such protection; put
// [http.CrossOriginProtection] before it where cookies say who is calling.
//
// # Answers
//
// Every answer carries X-Request-ID, the id of this attempt. Every answer of a marked command also carries the key it was
// sent, if that is valid, and Cache-Control: no-store; and, where the record was looked at, Idempotency-Replayed and the
// Idempotency-Original-Request-ID of the attempt that did the work (rule http-2). A replay is rendered from the recorded
// result by the code of today. No header of the first answer is stored: Location is computed again, and cookies are not
// replayed. The outcome is recorded before a byte of the answer is written, so what becomes of the answer on its way does not
// change what a retry finds.
//
// Errors are problem details (RFC 9457), see [Problem], and their statuses stand in one function, [Status]. No answer holds
// the text of an error that is not known to be meant for callers. Where an API has an envelope of its own round everything,
// [Config].Envelope makes it.
//
// # Long work
//
// While an attempt of a Leased command is at work, a duplicate is told the operation_id, which is the same for every attempt of
// the intent and does not show the key (rule rec-4): in the problem of a 409, or, where the command's policy says AnswerAccepted,
// in an answer of 202. That one is no problem but {"request_id": …, "operation_id": …, "state": "in_progress"} with Retry-After
// and, where [Config].Operations says so, the Location of the operation; and it is no success either, so clients must not take
// it for one. What has become of the work is found out at the route that [Operations] serves, or by sending the same request
// again with the same key. Only the latter takes up work whose attempt has died.
//
// # Proxies and time limits
//
// A proxy or service mesh in front may send a POST again by itself, with the same headers, perhaps to another replica: many
// do so on 503 and on a broken connection, for any method. With a key that makes one outcome; a marked command without one
// is refused on every try. A command without the mark has no such protection, so its failures are answered with 500 rather
// than 503.
//
// Limit the time of a request with a deadline on its context and not with http.TimeoutHandler or its relatives. Those answer
// 503 while the handler goes on, without the headers above. Nothing breaks behind them: the handler's outcome is recorded,
// and a retry gets it.
package httpedge
