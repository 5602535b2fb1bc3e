CREATE TABLE client_requests (id uuid PRIMARY KEY, at timestamptz NOT NULL);
INSERT INTO client_requests VALUES (gen_random_uuid(), now() - interval '1 hour');
CREATE TABLE processed_requests (id text PRIMARY KEY, result jsonb NOT NULL, at timestamptz NOT NULL);
INSERT INTO processed_requests VALUES ('a-key-of-mine', '{}', now() - interval '80 hours');
CREATE TABLE orders (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), cart_id text NOT NULL, amount bigint NOT NULL);
