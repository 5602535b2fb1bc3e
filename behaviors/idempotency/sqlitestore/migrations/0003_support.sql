-- The draft that the request of a record names before its dispatch: support is given a draft as often as a reference, and has it also of
-- work that is still going on or was not done. NULL where the request named none, and after an erasure. It may be NULL because an
-- older version of the program, which may go on beside a newer one, writes records without it. What that one erases
-- meanwhile keeps its draft; erase it again.
--
-- There is no index on it, because each costs every command something; see Store.Find.

ALTER TABLE idempotency_records ADD COLUMN draft_id TEXT;

-- The traceparent of the attempt that did the work, where it was traced: replays are linked to it, from other processes as well. It is written
-- and replaced together with origin_request_id.

ALTER TABLE idempotency_records ADD COLUMN origin_trace TEXT;
