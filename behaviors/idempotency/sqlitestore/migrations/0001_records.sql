-- The records of idempotent commands, for both ways of claiming a key: written once, in its final state, by the transaction
-- that did the work, or claimed first under a lease (fence, lease_until). Times are unix milliseconds by the clock of the
-- process that writes them.
--
-- A table with a rowid: it is appended to at its end, whatever the keys are like, and a large result does not stand in the
-- inner pages of the primary key's tree.

CREATE TABLE idempotency_records (
    id                BLOB NOT NULL PRIMARY KEY,  -- 16 bytes made of (tenant, client, operation, key); see idempotency.Scope
    tenant            TEXT NOT NULL,              -- '' where there is one tenant
    client            TEXT NOT NULL,
    operation         TEXT NOT NULL,
    key               TEXT NOT NULL,
    request_hash      BLOB NOT NULL,
    hash_version      INTEGER NOT NULL,
    state             TEXT NOT NULL CHECK (state IN ('in_progress', 'completed', 'failed')),
    after_expiry      TEXT NOT NULL CHECK (after_expiry IN ('reuse', 'tombstone')),
    attempt           BLOB NOT NULL,              -- random for each attempt: by it an attempt knows its own record
    attempts          INTEGER NOT NULL DEFAULT 1,
    fence             INTEGER,
    lease_until       INTEGER,
    outcome           INTEGER,                    -- 0 success, 1 final refusal
    result            BLOB,                       -- bytes: a replay gives back what was stored
    result_type       TEXT,
    origin_request_id TEXT NOT NULL,
    external_ref      TEXT,
    created_at        INTEGER NOT NULL,
    completed_at      INTEGER,
    expires_at        INTEGER NOT NULL,
    CHECK ((state = 'completed') = (outcome IS NOT NULL)),
    CHECK (state <> 'in_progress' OR (lease_until IS NOT NULL AND fence IS NOT NULL))
) STRICT;

-- The only index beside the key, on a column that does not change while a record lives.
CREATE INDEX idempotency_records_expires ON idempotency_records (expires_at);
