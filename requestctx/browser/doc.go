// Package browser is the side of a web page: a module for browsers that makes the key of a form, keeps it, sends it and says to the
// person what became of the request. [Handler] serves it; it has no dependencies and needs no build step.
//
//	mux.Handle("/assets/tekil/", http.StripPrefix("/assets/tekil/", browser.Handler()))
//
// A plain form becomes one whose orders are placed effectively once:
//
//	import { enhance } from "/assets/tekil/tekil.mjs";
//
//	enhance(document.querySelector("#checkout"), {
//	  id: "checkout",
//	  status: document.querySelector("#status"),
//	  startOver: document.querySelector("#start-over"),
//	  reference: (placed) => placed.order_id,
//	});
//
// And without one, or for a form that makes several requests:
//
//	import { open } from "/assets/tekil/tekil.mjs";
//
//	const form = open({ id: "checkout", draft: cart.id });         // when the form opens, not when it is sent
//	const outcome = await form.send("/api/v1/checkouts", { body: order });
//
//	const account = await form.call("/accounts", { body: a });     // each with a key of its own
//	const address = await form.call("/addresses", { body: b });
//	if (account.ok && address.ok) form.done();
//
// The file tekil.mjs can be taken as it is by a bundler or by Node as well; tekil.d.mts holds its types. It is written for browsers
// of 2024 and later.
//
// # Who makes the key, and when
//
// The side that starts the intent does (rule key-1): the page, when the form opens and not when it is sent. One form is one intent
// and has one key, through reload, error, time-out and retry.
//
// Without a draft the key is a UUID of crypto.randomUUID, and it lives as long as the tab. Two tabs that are opened on their own
// are two intents, and a duplicated tab is one. If the tab is closed while the outcome is not known, another attempt is new work
// (rule key-2).
//
// With a draft the key is derived from the form's id, the draft's id and a generation, so another tab, another device or a
// restarted app come to the same key without any storage. A draft's id is the identity of one intent, such as a cart. It is made
// once by whoever makes drafts, at random where callers are anonymous. Do not build it of what is ordered, of the user or of the
// day: the next order of the same things would be answered with the first one. After a success the same draft has the same key
// and is answered with the same order; a new cart is a new draft.
//
// send uses the form's own key, and only for one route, because on another one the same key would be other work. For the same
// reason a redirect is not followed, unless init.redirect says so: its answer confirms nothing and is unknown. call derives a key per
// method, path and label (rule key-3), and fails for another body under a label whose call is under way.
//
// # Where it is kept
//
// In sessionStorage, under the ids of form and draft, with a digest of what was sent and is not confirmed, salted with the key; and
// in the header Idempotency-Key, which belongs to the module. It is in no URL, no element, no message, no error and no outcome
// (rule key-4): show the order's number. Scripts of the page's origin can read it, as they can send requests.
//
// If sessionStorage is forbidden or full, a form with a draft goes on without it, and one without a draft throws at its opening. A
// key that would be lost with the page is never made in silence. A record that something has damaged is expired: what was sent under
// it is not known. The damage loses a draft's generation as well, and options.generation is what is left of it: a draft that has been
// started over should keep form.generation itself. A page that is not a secure context (HTTPS or localhost) has no
// crypto.subtle, and throws too.
//
// # When it is thrown away
//
//	done         a 2xx answer, replayed or not           spent; the next opening is a new key
//	accepted     202                                     kept; it is no success
//	refused      400, 422 and other 4xx                  kept for the corrected form; if final, until startOver
//	conflict     the key came with another payload, or   kept; nothing is sent by itself, and the person is told
//	             another 409
//	in-progress  409 with the code of it, or same-key,   kept; asked again as Retry-After says
//	             or no code and a Retry-After
//	busy         429                                     kept; asked again as Retry-After says
//	unknown      no answer, time-out, 408, 5xx           kept; asked again
//	             a redirect                              kept; not asked again
//	blocked      as unknown, from another origin         kept; asked again
//	expired      past ttlHours, or forgotten over there  kept; nothing is sent before startOver
//
// A spent form sends nothing any more, so that the second half of a slow double click is no second order. open gives the next one;
// an enhanced form without a draft opens again when it is edited, reset or shown by the back button. Code that uses open itself
// should do that on the event pageshow with persisted. An answer that came by a redirect confirms nothing unless it has the
// header Idempotency-Replayed, because it may be a login page. done throws while a call is under way, was refused or is not confirmed.
//
// What onState, reference or a text throws is given to reportError, or to the console where there is none, and changes nothing. What
// an enhanced form's encode throws is reported too, and the state is "failed": nothing was sent by this press.
//
// Asking again is up to three tries in a minute by default, with the same key and the same bytes (rule key-5), and two submits in
// one turn, or one while another is under way, are one request. Browsers repeat a POST by themselves too, where a connection that was
// used before breaks; that is the same key as well. navigator.onLine is not believed. After a 202 the same request
// with the same key finds out how it ended; retry.accepted does that by itself, within the same limits. FormData gets a new boundary
// when the person presses again, so a server that compares raw bytes sees another payload; compare its fields, or send JSON.
//
// A payload that was edited after an unknown outcome keeps the key, and the person is told that the first attempt may have
// succeeded (rule key-6). If it has, the answer is a conflict. A new key is made only by startOver, which is the person's decision:
// for a button and not for an error handler. With a draft it raises the generation, which is kept in this tab only: store
// form.generation with the draft, or make a new draft instead.
//
// After ttlHours, 24 by default, a key is not taken up any more (rule key-7). Give no more than the hours for which the server
// keeps its records. A key that was never sent is made anew; one whose outcome is unknown is told and waits for startOver, and so does
// a draft's that was confirmed, because the server may have forgotten it. A key made more than 5 minutes in the future, by a clock
// that has been set back since, is too old as well.
//
// # What the page needs
//
// A Content-Security-Policy of script-src 'self' and connect-src 'self', or the origin of the API; no inline script, no eval and no
// styles. For an API of another origin, httpedge.CORS round its router. If that is missing, the outcome is blocked and
// its error says "CORS/preflight", because a script is not told more.
//
// Without JavaScript the browser posts a plain form by itself and without a key. Only a server that takes such a request as well
// can serve it, and then nothing protects it from being done twice; the routes of httpedge refuse it.
//
// # What it does not promise
//
// It cannot know that an order was placed if the tab is closed before the answer and there is no draft. It does not order attempts:
// an answer may come late, which is why an unknown outcome stays unknown until an answer. And it does not stop scripts of the page
// from sending requests of their own.
package browser
