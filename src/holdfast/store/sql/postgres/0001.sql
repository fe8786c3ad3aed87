-- Holdfast on PostgreSQL. A batch of writes is one call of a function below, so it is one statement, one transaction and
-- one way to the server and back; readers only read. A run's row is an index of the fold of its entries. Times are µs UTC.
-- `holdfast` stands for the schema that the store's address names.

CREATE TABLE holdfast.hf_store (
    one        integer PRIMARY KEY CHECK (one = 1),
    id         text    NOT NULL,
    epoch      bigint  NOT NULL,
    created_at bigint  NOT NULL,
    system     text    NOT NULL,    -- the cluster's identifier and timeline: another one means a restore or a failover
    version    integer NOT NULL     -- of the schema
);

-- Run numbers are taken by the block, so nobody waits for the counter.
CREATE SEQUENCE holdfast.hf_run_numbers INCREMENT BY 256;

-- A worker's row lives until its leases are voided or given up, so an owner without a row is dead.
CREATE TABLE holdfast.hf_workers (
    number     bigint  PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    worker     text    NOT NULL UNIQUE,
    pulse      bigint  NOT NULL,
    started_at bigint  NOT NULL,
    lock       text,
    about      text    NOT NULL,
    beat_at    bigint               -- for people; no rule goes by it
);

CREATE TABLE holdfast.hf_runs (
    number       bigint  PRIMARY KEY,  -- says nothing but which run; the id's order is the order of creation
    run          uuid    NOT NULL UNIQUE,
    tenant       text    NOT NULL,
    key          text,
    name         text    NOT NULL,
    digest       text    NOT NULL,
    code         text    NOT NULL,
    pin          smallint NOT NULL,
    labels       text    NOT NULL,
    parent       uuid,
    root         uuid    NOT NULL,
    conversation text,
    turn         bigint,
    created_at   bigint  NOT NULL,
    updated_at   bigint  NOT NULL,
    status       text    NOT NULL,
    reason       text    NOT NULL,
    due_at       bigint,            -- when it may be claimed; null: not by time
    last_seq     bigint  NOT NULL,
    head         bytea   NOT NULL,  -- the last entry's checksum, so a cut tail shows
    owner        bigint,            -- a worker's number; null: no lease
    fence        bigint  NOT NULL,
    attempt      bigint  NOT NULL,
    stalls       bigint  NOT NULL,  -- claims since the last progress
    inbox_seq    bigint  NOT NULL DEFAULT 0,
    control_seq  bigint  NOT NULL DEFAULT 0,
    seen_seq     bigint  NOT NULL DEFAULT 0,
    inbox_sum    bigint  NOT NULL DEFAULT 0,  -- inbox_seq * 1000003 + control_seq * 1009 + seen_seq, kept by differences
    refused      text    NOT NULL,  -- code versions that diverged
    guard        bigint  NOT NULL   -- CRC-32 of the row but for owner and the inbox's columns
) WITH (fillfactor = 70);           -- room for the next version beside the last: most commits touch no index
CREATE UNIQUE INDEX hf_runs_key ON holdfast.hf_runs (tenant, key) WHERE key IS NOT NULL;
-- Workers begin at different buckets, so that they seldom want the same run.
CREATE INDEX hf_runs_due ON holdfast.hf_runs ((number % 16), due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX hf_runs_posted ON holdfast.hf_runs (number) WHERE owner IS NULL AND inbox_seq > seen_seq;
CREATE INDEX hf_runs_owner ON holdfast.hf_runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX hf_runs_parent ON holdfast.hf_runs (parent) WHERE parent IS NOT NULL;

-- Keys outlive their runs: a tombstone answers for a deleted one.
CREATE TABLE holdfast.hf_keys (
    tenant       text NOT NULL,
    key          text NOT NULL,
    run          uuid NOT NULL,
    name         text NOT NULL,
    digest       text NOT NULL,
    conversation text,
    PRIMARY KEY (tenant, key)
);

CREATE TABLE holdfast.hf_entries (
    run      bigint   NOT NULL,
    seq      bigint   NOT NULL,
    kind     text     NOT NULL,
    version  smallint NOT NULL,
    at       bigint   NOT NULL,
    enc      smallint NOT NULL,
    body     bytea    NOT NULL,
    checksum bytea    NOT NULL,
    PRIMARY KEY (run, seq)
);

-- While a user's function runs in a transaction of ours, its entry to come is awaited here: an early COMMIT fails.
CREATE TABLE holdfast.hf_awaited (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    FOREIGN KEY (run, seq) REFERENCES holdfast.hf_entries (run, seq) DEFERRABLE INITIALLY DEFERRED
);

-- A fork's journal is its base's entries up to `up_to`, and its own after; flattened, so a fork of a fork has two rows.
CREATE TABLE holdfast.hf_lineage (
    run   bigint NOT NULL,
    up_to bigint NOT NULL,
    owner bigint NOT NULL,
    PRIMARY KEY (run, up_to)
);

CREATE TABLE holdfast.hf_posts (
    run      bigint   NOT NULL,
    seq      bigint   NOT NULL,
    kind     text     NOT NULL,
    key      text     NOT NULL,
    control  smallint NOT NULL,
    at       bigint   NOT NULL,
    consumed bigint,                -- the entry that took it; the row keeps its key as long as the run
    enc      smallint NOT NULL,
    guard    bigint   NOT NULL,     -- CRC-32 of the post but for seq, plus consumed * 2^32
    body     bytea    NOT NULL,
    PRIMARY KEY (run, seq),
    UNIQUE (run, key)
);

CREATE TABLE holdfast.hf_chunks (
    run     bigint   NOT NULL,
    seq     bigint   NOT NULL,      -- the entry it follows, stamped by the insert itself
    fence   bigint   NOT NULL,
    number  bigint   NOT NULL,
    step    text     NOT NULL,
    attempt bigint   NOT NULL,
    "offset" bigint  NOT NULL,
    at      bigint   NOT NULL,
    enc     smallint NOT NULL,
    body    bytea    NOT NULL,
    PRIMARY KEY (run, seq, fence, number)
);

CREATE TABLE holdfast.hf_blobs (
    id         bigint   PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant     text     NOT NULL,
    digest     bytea    NOT NULL,
    enc        smallint NOT NULL,
    touched_at bigint   NOT NULL,
    body       bytea    NOT NULL,
    UNIQUE (tenant, digest)
);

CREATE TABLE holdfast.hf_blob_refs (
    run  bigint NOT NULL,
    seq  bigint NOT NULL,
    blob bigint NOT NULL,
    PRIMARY KEY (run, seq, blob)
);
CREATE INDEX hf_blob_refs_blob ON holdfast.hf_blob_refs (blob);

-- Per channel: total = free + reserved + spent. `unknown` marks a channel where something was spent that nobody counted.
CREATE TABLE holdfast.hf_budgets (
    run      bigint  NOT NULL,
    channel  text    NOT NULL,
    total    bigint  NOT NULL,
    reserved bigint  NOT NULL,
    spent    bigint  NOT NULL,
    unknown  boolean NOT NULL,
    PRIMARY KEY (run, channel)
);

CREATE TABLE holdfast.hf_conversations (
    tenant       text   NOT NULL,
    conversation text   NOT NULL,
    active_run   bigint,
    last_turn    bigint NOT NULL,
    harness      text,
    cursor       bytea,
    PRIMARY KEY (tenant, conversation)
);

-- Commit as many runs as the arrays have places, drop the chunks and consume the posts that go with them; return the places that were refused, with what stands there.
-- The check and the write are one statement: a worker that lost its lease matches no row. Rows lock by number.
CREATE FUNCTION holdfast.hf_commit(
    p_number bigint[], p_owner bigint[], p_fence bigint[], p_after bigint[], p_seq bigint[], p_head bytea[],
    p_at bigint[], p_stalls bigint[], p_guard bigint[], p_control bigint[], p_inbox bigint[],
    p_status text[], p_reason text[], p_due bigint[], p_refused text[], p_seen bigint[],
    e_place bigint[], e_run bigint[], e_seq bigint[], e_kind text[], e_version bigint[], e_at bigint[], e_enc bigint[],
    e_body bytea[], e_checksum bytea[],
    d_place bigint[], d_run bigint[], d_step text[], c_place bigint[], c_run bigint[], c_seq bigint[], c_entry bigint[]
) RETURNS TABLE (place bigint, owner bigint, fence bigint, last_seq bigint, inbox_seq bigint, control_seq bigint)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    taken bigint[];
BEGIN
    WITH done AS (
        UPDATE holdfast.hf_runs r
           SET last_seq = c.seq, head = c.head, updated_at = c.at, stalls = c.stalls, guard = c.guard,
               status = coalesce(c.status, r.status),
               reason = CASE WHEN c.status IS NULL THEN r.reason ELSE c.reason END,
               due_at = CASE WHEN c.status IS NULL THEN r.due_at ELSE c.due END,
               refused = CASE WHEN c.status IS NULL THEN r.refused ELSE c.refused END,
               owner = CASE WHEN c.status IS NULL THEN r.owner END,
               seen_seq = CASE WHEN c.status IS NULL THEN r.seen_seq
                               ELSE least(r.inbox_seq, coalesce(c.seen, r.inbox_seq)) END,
               inbox_sum = r.inbox_sum + CASE WHEN c.status IS NULL THEN 0
                               ELSE least(r.inbox_seq, coalesce(c.seen, r.inbox_seq)) - r.seen_seq END
          FROM (SELECT * FROM unnest(
                    p_number, p_owner, p_fence, p_after, p_seq, p_head, p_at, p_stalls, p_guard, p_control, p_inbox,
                    p_status, p_reason, p_due, p_refused, p_seen) WITH ORDINALITY
                AS c(number, owner, fence, after, seq, head, at, stalls, guard, control, inbox, status, reason, due,
                     refused, seen, place) ORDER BY number) c
         -- `+ 0`: the index of owners must not be walked instead of the primary key.
         WHERE r.number = c.number AND r.owner + 0 = c.owner AND r.fence = c.fence AND r.last_seq = c.after
           AND (c.control IS NULL OR r.control_seq = c.control) AND (c.inbox IS NULL OR r.inbox_seq = c.inbox)
        RETURNING c.place
    )
    SELECT array_agg(done.place) INTO taken FROM done;
    IF cardinality(d_place) > 0 THEN
        -- A step that is null stands for every step.
        DELETE FROM holdfast.hf_chunks k USING unnest(d_place, d_run, d_step) AS d(place, run, step)
         WHERE k.run = d.run AND (d.step IS NULL OR k.step = d.step) AND d.place = ANY(taken);
    END IF;
    IF cardinality(c_place) > 0 THEN
        UPDATE holdfast.hf_posts p
           SET consumed = c.entry, guard = p.guard + ((c.entry - coalesce(p.consumed, 0)) << 32)
          FROM unnest(c_place, c_run, c_seq, c_entry) AS c(place, run, seq, entry)
         WHERE p.run = c.run AND p.seq = c.seq AND c.place = ANY(taken);
    END IF;
    IF cardinality(taken) = cardinality(p_number) THEN
        INSERT INTO holdfast.hf_entries (run, seq, kind, version, at, enc, body, checksum)
        SELECT * FROM unnest(e_run, e_seq, e_kind, e_version, e_at, e_enc, e_body, e_checksum);
        RETURN;
    END IF;
    INSERT INTO holdfast.hf_entries (run, seq, kind, version, at, enc, body, checksum)
    SELECT e.run, e.seq, e.kind, e.version, e.at, e.enc, e.body, e.checksum
      FROM unnest(e_place, e_run, e_seq, e_kind, e_version, e_at, e_enc, e_body, e_checksum)
        AS e(place, run, seq, kind, version, at, enc, body, checksum)
     WHERE e.place = ANY(taken);
    RETURN QUERY
    SELECT c.place, r.owner, r.fence, r.last_seq, r.inbox_seq, r.control_seq
      FROM unnest(p_number) WITH ORDINALITY AS c(number, place) LEFT JOIN holdfast.hf_runs r ON r.number = c.number
     WHERE NOT c.place = ANY(coalesce(taken, '{}'));
END $$;

-- Create as many runs as the arrays have places, each once for its key; return the places that were not created, with
-- what the key stands for. A retry finds its own run.
CREATE FUNCTION holdfast.hf_create(
    p_number bigint[], p_run uuid[], p_tenant text[], p_key text[], p_name text[], p_digest text[], p_code text[],
    p_pin bigint[], p_labels text[], p_parent uuid[], p_root uuid[], p_conversation text[], p_turn bigint[],
    p_created_at bigint[], p_updated_at bigint[], p_status text[], p_reason text[], p_due bigint[], p_seq bigint[],
    p_head bytea[], p_fence bigint[], p_attempt bigint[], p_stalls bigint[], p_refused text[], p_owner bigint[],
    p_guard bigint[], e_kind text[], e_version bigint[], e_at bigint[], e_enc bigint[], e_body bytea[]
) RETURNS TABLE (place bigint, run uuid, name text, digest text, conversation text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    fresh uuid[];
    made uuid[];
    alive bigint[];
BEGIN
    -- A worker whose row is gone was declared dead: what it creates is nobody's. Held, so that it is not declared meanwhile.
    SELECT array_agg(w.number) INTO alive
      FROM (SELECT number FROM holdfast.hf_workers WHERE number = ANY(p_owner) ORDER BY number FOR KEY SHARE) w;
    WITH new AS (
        INSERT INTO holdfast.hf_keys (tenant, key, run, name, digest, conversation)
        SELECT c.tenant, c.key, c.run, c.name, c.digest, c.conversation
          FROM unnest(p_tenant, p_key, p_run, p_name, p_digest, p_conversation)
            AS c(tenant, key, run, name, digest, conversation)
         WHERE c.key IS NOT NULL ORDER BY c.tenant, c.key
        ON CONFLICT (tenant, key) DO NOTHING RETURNING run
    )
    SELECT array_agg(new.run) INTO fresh FROM new;
    WITH new AS (
        INSERT INTO holdfast.hf_runs (
            number, run, tenant, key, name, digest, code, pin, labels, parent, root, conversation, turn, created_at,
            updated_at, status, reason, due_at, last_seq, head, fence, attempt, stalls, refused, owner, guard)
        SELECT c.number, c.run, c.tenant, c.key, c.name, c.digest, c.code, c.pin, c.labels, c.parent, c.root,
               c.conversation, c.turn, c.created_at, c.updated_at, c.status, c.reason, c.due_at, c.seq, c.head,
               c.fence, c.attempt, c.stalls, c.refused, CASE WHEN c.owner = ANY(alive) THEN c.owner END, c.guard
          FROM unnest(
            p_number, p_run, p_tenant, p_key, p_name, p_digest, p_code, p_pin, p_labels, p_parent, p_root,
            p_conversation, p_turn, p_created_at, p_updated_at, p_status, p_reason, p_due, p_seq, p_head, p_fence,
            p_attempt, p_stalls, p_refused, p_owner, p_guard)
            AS c(number, run, tenant, key, name, digest, code, pin, labels, parent, root, conversation, turn,
                 created_at, updated_at, status, reason, due_at, seq, head, fence, attempt, stalls, refused, owner, guard)
         WHERE c.key IS NULL OR c.run = ANY(fresh)
        ON CONFLICT (run) DO NOTHING RETURNING run
    )
    SELECT array_agg(new.run) INTO made FROM new;
    INSERT INTO holdfast.hf_entries (run, seq, kind, version, at, enc, body, checksum)
    SELECT c.number, c.seq, c.kind, c.version, c.at, c.enc, c.body, c.head
      FROM unnest(p_number, p_run, p_seq, e_kind, e_version, e_at, e_enc, e_body, p_head)
        AS c(number, run, seq, kind, version, at, enc, body, head)
     WHERE c.run = ANY(made);
    RETURN QUERY
    SELECT c.place, coalesce(k.run, c.run), k.name, k.digest, k.conversation
      FROM unnest(p_tenant, p_key, p_run) WITH ORDINALITY AS c(tenant, key, run, place)
      LEFT JOIN holdfast.hf_keys k ON k.tenant = c.tenant AND k.key = c.key
     WHERE NOT c.run = ANY(coalesce(made, '{}'));
END $$;

-- Put posts into inboxes, numbered per run; return what became of each place: accepted, duplicate, finished, or null
-- for a run that is not there. The runs are locked first, by number, and what is counted is looked at after that.
CREATE FUNCTION holdfast.hf_post(
    p_run uuid[], p_kind text[], p_key text[], p_control bigint[], p_at bigint[], p_guard bigint[], p_body bytea[]
) RETURNS TABLE (place bigint, outcome text, seq bigint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM holdfast.hf_runs r WHERE r.run = ANY(p_run) ORDER BY r.number FOR NO KEY UPDATE;
    RETURN QUERY
    WITH c AS MATERIALIZED (
        SELECT c.*, r.number, r.inbox_seq, r.status IN ('completed', 'failed', 'cancelled') AS over,
               p.seq AS known, row_number() OVER (PARTITION BY c.run, c.key ORDER BY c.place) AS nth
          FROM unnest(p_run, p_kind, p_key, p_control, p_at, p_guard, p_body) WITH ORDINALITY
            AS c(run, kind, key, control, at, guard, body, place)
          LEFT JOIN holdfast.hf_runs r ON r.run = c.run
          LEFT JOIN holdfast.hf_posts p ON p.run = r.number AND p.key = c.key
    ), new AS MATERIALIZED (
        SELECT c.*, c.inbox_seq + row_number() OVER (PARTITION BY c.number ORDER BY c.place) AS seq
          FROM c WHERE c.number IS NOT NULL AND c.known IS NULL AND NOT c.over AND c.nth = 1
    ), added AS (
        INSERT INTO holdfast.hf_posts (run, seq, kind, key, control, at, enc, guard, body)
        SELECT new.number, new.seq, new.kind, new.key, new.control, new.at, 0, new.guard, new.body FROM new
    ), counted AS (
        UPDATE holdfast.hf_runs r
           SET inbox_seq = n.last, control_seq = coalesce(n.control, r.control_seq),
               inbox_sum = r.inbox_sum + (n.last - r.inbox_seq) * 1000003
                         + (coalesce(n.control, r.control_seq) - r.control_seq) * 1009
          FROM (SELECT new.number, max(new.seq) AS last, max(new.seq) FILTER (WHERE new.control = 1) AS control
                  FROM new GROUP BY new.number) n
         WHERE r.number = n.number
    )
    SELECT c.place,
           CASE WHEN c.number IS NULL THEN NULL WHEN c.known IS NOT NULL OR (c.nth > 1 AND NOT c.over) THEN 'duplicate'
                WHEN c.over THEN 'finished' ELSE 'accepted' END,
           coalesce(c.known, new.seq, (SELECT n.seq FROM new n WHERE n.number = c.number AND n.key = c.key), 0)
      FROM c LEFT JOIN new ON new.place = c.place ORDER BY c.place;
END $$;

-- Declare a worker dead: its row first, so that a claim of its that is under way has ended and no other begins.
CREATE FUNCTION holdfast.hf_void(p_worker text) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    freed bigint;
BEGIN
    DELETE FROM holdfast.hf_workers w WHERE w.worker = p_worker;
    PERFORM 1 FROM holdfast.hf_runs r
      WHERE r.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast.hf_workers w WHERE w.number = r.owner)
      ORDER BY r.number FOR NO KEY UPDATE;
    UPDATE holdfast.hf_runs r SET owner = NULL
      WHERE r.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast.hf_workers w WHERE w.number = r.owner);
    GET DIAGNOSTICS freed = ROW_COUNT;
    RETURN freed;
END $$;
