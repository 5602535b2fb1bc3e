-- The records of idempotent commands, for both ways of claiming a key: written once, in its final state, by the transaction
-- that did the work, or claimed first under a lease (fence, lease_until).

CREATE SEQUENCE idempotency_fence AS bigint CACHE 1;

CREATE TABLE idempotency_records (
    id                uuid PRIMARY KEY,             -- made of (tenant, client, operation, key); see idempotency.Scope
    tenant            text COLLATE "C" NOT NULL,    -- '' where there is one tenant, never NULL: NULLs are not equal to each other
    client            text COLLATE "C" NOT NULL,
    operation         text COLLATE "C" NOT NULL,
    key               text COLLATE "C" NOT NULL,    -- COLLATE "C": case counts, whatever the database's collation says
    request_hash      bytea NOT NULL,
    hash_version      smallint NOT NULL,
    state             text COLLATE "C" NOT NULL CHECK (state IN ('in_progress', 'completed', 'failed')),
    after_expiry      text COLLATE "C" NOT NULL CHECK (after_expiry IN ('reuse', 'tombstone')),
    attempt           uuid NOT NULL,                -- random for each attempt: by it an attempt knows its own record
    attempts          integer NOT NULL DEFAULT 1,
    fence             bigint,
    lease_until       timestamptz,
    outcome           smallint,                     -- 0 success, 1 final refusal
    result            bytea,                        -- bytes and not jsonb: a replay gives back what was stored, to the byte
    result_type       text,
    origin_request_id text NOT NULL,
    external_ref      text,
    created_at        timestamptz NOT NULL,
    completed_at      timestamptz,
    expires_at        timestamptz NOT NULL,
    CHECK ((state = 'completed') = (outcome IS NOT NULL)),
    CHECK ((state = 'in_progress') <= (lease_until IS NOT NULL AND fence IS NOT NULL))
);

-- The only index beside the key, on a column that does not change while a record lives. An index that mentions state or
-- lease_until would make every completion write all indexes anew.
CREATE INDEX idempotency_records_expires ON idempotency_records (expires_at);
