// Package client is the side that makes the key: it sends commands over HTTP and sends them again where that is safe.
//
//	intent, err := client.Begin(ctx, store, "checkout", client.Options{DraftID: cart})  // new, or the one that a killed program left
//	answer, err := client.Do[Placed](ctx, c, intent, client.Call{URL: api + "/v1/orders", Command: order})
//
// # The key
//
// An [Intent] is one thing that is meant to be done, and has one key for all attempts (rules key-1, key-2). [New] makes one that is
// kept in memory, [Begin] one that is stored and resumed. Without a draft the key is a fresh UUID; with one it is derived from the
// draft's id, so it is there again without any storage. A success ends the intent; an error never does. A stored intent whose time
// is over is not resumed, and only [Renew], which somebody has to mean, puts another in its place.
//
// Do not make a draft's id from content, user or time. Whoever buys the same again on the same day would be given the first order,
// and a change of a word would be a conflict.
//
// [Do] sends the intent's own key. Several calls under one intent need a key each, which [Intent.For] derives and
// [Client.RoundTrip] uses of itself (rule key-3). Two calls of one method and path are told apart by a label.
//
// # When a request is sent again
//
// By what happened and what kind of request it is (rule key-5); [Policy] gives the same table to programs:
//
//	what happened         read   write with key  PUT, DELETE (*)  other write without key
//	dial error            again  again           again            stop
//	certificate refused   stop   stop            stop             stop
//	cut while sending     again  again           again            stop
//	cut after sending     again  again           again            stop
//	no answer in time     again  again           again            stop
//	2xx                   stop   stop            stop             stop
//	202                   stop   stop            stop             stop
//	3xx                   stop   stop            stop             stop
//	400                   stop   stop            stop             stop
//	408                   again  again           again            stop
//	409 in progress       stop   again           stop             stop
//	409 otherwise         stop   stop            stop             stop
//	422                   stop   stop            stop             stop
//	425                   again  again           again            stop
//	429                   again  again           again            stop
//	other 4xx             stop   stop            stop             stop
//	500, other 5xx        again  again           stop             stop
//	502                   again  again           again            stop
//	503                   again  again           again            stop
//	504                   again  again           again            stop
//
// (*) without a key. RFC 9110 calls these two methods idempotent: the server's author has promised that a second request changes
// nothing. With a key they are writes with a key.
//
// A 409 is in progress if its problem has the code IDEMPOTENCY_REQUEST_IN_PROGRESS or says same-key, or if there is no problem to be
// read and it has Retry-After. A problem whose retry member is none or new-key ends the tries whatever the status is. A body that
// cannot be read a second time ends them as well.
//
// Retry-After, in seconds or as a date, is waited for as it says. Without it the wait is random, up to a limit that doubles with
// each try. A wait beyond what is left of the total time ends the tries at once. The limits are [Client]'s fields: 8 tries, 10
// seconds for the headers of each answer, 2 minutes for all.
//
// # Who makes the tries
//
// [http.Transport] sends a request again by itself when a kept-alive connection breaks and the request has an Idempotency-Key. For
// writes with a key that is switched off, by giving it bodies that it cannot read again, so that no more requests arrive than
// MaxTries says. The price: a POST, PUT or PATCH with a key and without a body is sent with an empty chunked body in HTTP/1.1.
// Over HTTP/2 it can still choose another connection for a request that was not sent. A read is left to the transport, because a
// body on a GET offends proxies. What it sends again is counted, so a read arrives at most MaxTries times and, at worst, once more
// for each idle connection that breaks under the last try ([http.Transport.MaxIdleConnsPerHost] says how many there are, 2 by
// default).
//
// A write with a key is not followed to another resource by a redirect; [Do] and [Client.RoundTrip] give a [*RedirectError].
//
// There is no retry library in it. Those that were looked at decide by the answer alone and do not know the request when there is
// none, or do not say which limit has ended the tries, which is what the errors here are about; what remains is a loop.
//
// # What is not promised
//
// A try that had no answer may have been carried out, and an [*UnknownError] leaves that open: the server's record settles it when
// the intent is sent again. Nothing here prevents the work of a server that does not know the key from being done twice. Keys are
// never in the text of errors, in a [Try] or in what fmt and log/slog print of an [Intent], wherever it stands, or of a [Record] by itself.
package client
