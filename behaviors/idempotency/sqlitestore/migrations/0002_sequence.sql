-- The last fence that was given to a Leased claim: one row. It is raised in the transaction of the claim, so a fence is larger
-- than all that were committed before it.

CREATE TABLE idempotency_sequence (
    id    INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    value INTEGER NOT NULL
) STRICT;

INSERT INTO idempotency_sequence (id, value) SELECT 1, coalesce(max(fence), 0) FROM idempotency_records;
