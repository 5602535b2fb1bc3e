// Package console is a page for support: it answers "was he charged twice?", shows what is stuck or has failed, and frees a key that no retry can free. It
// is one http.Handler, and off unless you mount it:
//
//	records, err := console.New(console.Config{Admin: admin, Who: staff, Pipeline: reg.Describe()})
//	…
//	mux.Handle("/ops/records/", http.StripPrefix("/ops/records", records))
//
// It has no log-in of its own. Config.Who is the application's: it is asked for each request, and without it there is no console. Let it
// demand what the most that can be done here is worth: every record of every tenant can be seen, and every stuck key released. Put what
// limits the number of requests in front of it as well, because a search may read the whole table.
//
// # What it shows
//
// One box finds a record by its key, external reference, draft, request id (that of the attempt that did the work; those of replays are
// in the log), operation id (what a caller has who was told 202) or record id. All are tried, in the order operation, record, key,
// reference, draft, request, and each record says by what it was found; one that is found by an id of its own ends the search. At most 100 are given. A
// sentence says what became of the intent, and a line shows its life: when it began, attempts, state, lease, expiry. The first page counts the records by
// command and state; one request counts at a time, and what it has found is shown to all for 5 seconds, or until a key is released here.
//
// # What it does not know
//
// A key that was used again after its retention has begun a new life. What was before is not shown: the record no longer has it.
//
// Attempts are at least as many as are said. Within one, a serialization failure makes the handler run again, and a release begins the count anew. In a
// record that has failed, the last request may have been refused because there had been too many attempts before it, so nothing is said of that request.
//
// An external reference is in a record only when it is completed, so what is stuck is not found by one. The draft of a Leased command is there from the start.
// An Atomic command has no record before it is completed.
//
// Where a lease is over nothing has been heard since, and no more is known: most likely nobody is at work, but a handler does not renew its lease while
// its business transaction is open, and may still finish. Where one is not over, the attempt may have died.
//
// # What it never shows
//
// No result, stored or sealed, but its type and length; of a refusal the code and neither message nor data; no payload, which the record
// does not have. And no whole key, to scripts neither: who has a key of an anonymous caller has its answer. To compare a key with one that
// a customer names, search for it: the record that is found has it. What an application puts into an external reference, a
// draft id or a client's name is shown.
//
// A search is sent by POST, because an address stands in the logs of every proxy. The address of a record holds its operation id, out of which
// nobody reads the key. One hit leads to its record at once; a list of several is the answer to the POST, which a browser asks about before it loads it again.
//
// [Config.Log] has a line for each search (who, by what kind, how many were found; never what was looked for), for each record that was looked at (who, operation
// id), and for each request that Who has refused (its path alone). What a list of several shows counts as the search.
//
// # Releasing
//
// A person with a reason frees a key that is stuck or has failed too often ([idempotency.Admin.Release]); a log line says who and why. Where an attempt is
// most likely at work it takes a tick of its own. The page sends along which attempt it showed, so that a record which has changed since is refused. A browser
// is sent to the record afterwards, where released=ATTEMPT in the address says so for as long as nobody has taken the key. Erasing what
// a record holds is not here: it is rare, and [idempotency.Admin.Erase] does it.
//
// A POST from another site's page is refused by [http.CrossOriginProtection]: it judges by Sec-Fetch-Site, and where a browser sends none by Origin, which has to name
// the host of the request. A proxy in front must leave the header Host as the browser sent it where there is no TLS. A GET whose Sec-Fetch-Site is cross-site is refused as
// well, unless somebody follows a link (Sec-Fetch-Mode navigate, Sec-Fetch-Dest document), so that no other page makes the store work.
//
// # For scripts
//
// Every route gives JSON to a request whose header Accept names application/json and not text/html, or which has sent JSON itself. A body is a form or a JSON object.
//
//	GET  .                       how many records there are
//	POST search                  what is found
//	GET  stuck                   what is stuck or has failed
//	GET  records/OPERATION       one record
//	POST records/OPERATION/release
//	GET  pipeline                what the bus was built of, as in registry.Description
//
//	curl -u ayse -H 'Accept: application/json' https://shop.example/ops/records/
//	curl -u ayse --json '{"q": "auth-4711"}' https://shop.example/ops/records/search
//	curl -u ayse --json '{"q": "order-9", "by": "draft_id", "tenant": "acme"}' https://shop.example/ops/records/search
//	curl -u ayse -H 'Accept: application/json' https://shop.example/ops/records/records/OPERATION
//	curl -u ayse --json '{"reason": "ticket 4711", "seen": "ATTEMPT"}' https://shop.example/ops/records/records/OPERATION/release
//
// A search has the fields q and by: any (as without it), operation_id, id, key, external_ref, draft_id, request_id, or stuck (what is stuck or has failed), which has no q. A field has at most 500 characters. The fields tenant, client and
// command narrow it; a command is its name, or the whole operation as a record has it ("POST /v1/orders orders.place"), which the database compares. A
// command's name is compared afterwards, among the 100 youngest that were found. The answer has summary, records, truncated (there may be more) and, where there was
// no time for all kinds, not_searched.
//
// A record has id, operation_id, verdict, tenant, client, command, operation, key_masked, state (completed, in_progress, failed), stuck, expired, first_met,
// attempts, attempt_id, lease_until (in progress), completed_at (completed), expires_at, after_expiry (reuse, tombstone), request_id, external_ref, draft_id, outcome
// (success, refusal), refusal_code, kept (result, sealed, refusal, omitted, erased), result_type, result_bytes and, in a search, found_by. Times are in
// UTC. first_met is when the key's present life began; attempts is how often the key was taken in it, see above. stuck is true in progress alone, with the lease over.
// verdict and summary are for people and may change their words. The counts have records, stuck, failed and counts, each with command, operation, state, stuck, expired and records.
//
// A release has reason, seen (the attempt_id of the record as it was looked at) and live_lease (true where an attempt under a live lease is meant). It gives the record
// as it is then.
//
// An error has error, for people, and code: FORBIDDEN and CROSS_ORIGIN (403), NOT_FOUND and RECORD_NOT_FOUND (404), METHOD_NOT_ALLOWED (405), MALFORMED_REQUEST (400),
// BODY_TOO_LARGE (413), UNSUPPORTED_MEDIA_TYPE (415), IDEMPOTENCY_ADMIN_REFUSED (409: the record is not in a state in which it can be released), IDEMPOTENCY_STORE_UNAVAILABLE
// and DEADLINE_EXCEEDED (503). What a store's driver said is in the log and in no answer.
package console
