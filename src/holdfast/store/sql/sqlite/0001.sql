-- Holdfast on SQLite. Calls write `hf_runs` and append to `hf_entries` in one transaction; readers only read.
-- Everything a run is can be folded from its entries: its row is an index of that fold. Times are µs UTC.

CREATE TABLE hf_store (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    id         TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    next_run   INTEGER NOT NULL     -- run numbers below it are taken, by the block
);

-- A worker's row lives until its leases are voided or given up, so an owner without a row is dead.
CREATE TABLE hf_workers (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    worker     TEXT    NOT NULL UNIQUE,
    pulse      INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    lock       TEXT
);

CREATE TABLE hf_runs (
    number       INTEGER PRIMARY KEY,  -- says nothing but which run; the id's order is the order of creation
    run          BLOB    NOT NULL UNIQUE,
    tenant       TEXT    NOT NULL,
    key          TEXT,
    name         TEXT    NOT NULL,
    digest       TEXT    NOT NULL,
    code         TEXT    NOT NULL,
    pin          INTEGER NOT NULL,
    labels       TEXT    NOT NULL,
    parent       BLOB,
    root         BLOB    NOT NULL,
    conversation TEXT,
    turn         INTEGER,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    status       TEXT    NOT NULL,
    reason       TEXT    NOT NULL,
    due_at       INTEGER,           -- when it may be claimed; null: not by time
    last_seq     INTEGER NOT NULL,
    head         BLOB    NOT NULL,  -- the last entry's checksum, so a cut tail shows
    owner        INTEGER,           -- a worker's number; null: no lease
    fence        INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    stalls       INTEGER NOT NULL,  -- claims since the last progress
    inbox_seq    INTEGER NOT NULL,
    control_seq  INTEGER NOT NULL,
    seen_seq     INTEGER NOT NULL,
    inbox_sum    INTEGER NOT NULL,  -- inbox_seq * 1000003 + control_seq * 1009 + seen_seq, kept by differences
    refused      TEXT    NOT NULL,  -- code versions that diverged
    guard        INTEGER NOT NULL   -- CRC-32 of the row but for owner and the inbox's columns
);
CREATE UNIQUE INDEX hf_runs_key ON hf_runs (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX hf_runs_due ON hf_runs (due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX hf_runs_posted ON hf_runs (number) WHERE owner IS NULL AND inbox_seq > seen_seq;
CREATE INDEX hf_runs_owner ON hf_runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX hf_runs_parent ON hf_runs (parent) WHERE parent IS NOT NULL;

-- Keys outlive their runs: a tombstone answers for a deleted one.
CREATE TABLE hf_keys (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    run    BLOB NOT NULL,
    name   TEXT NOT NULL,
    digest TEXT NOT NULL,
    conversation TEXT,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;

-- Append-ordered; clustering by run costs three times the bytes.
CREATE TABLE hf_entries (
    id       INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    enc      INTEGER NOT NULL,
    body     BLOB    NOT NULL,
    checksum BLOB    NOT NULL
);
CREATE UNIQUE INDEX hf_entries_seq ON hf_entries (run, seq);

-- A fork's journal is its base's entries up to `up_to`, and its own after; flattened, so a fork of a fork has two rows.
CREATE TABLE hf_lineage (
    run   INTEGER NOT NULL,
    up_to INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    PRIMARY KEY (run, up_to)
) WITHOUT ROWID;

CREATE TABLE hf_posts (
    id       INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    key      TEXT    NOT NULL,
    control  INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    consumed INTEGER,               -- the entry that took it; the row keeps its key as long as the run
    enc      INTEGER NOT NULL,
    guard    INTEGER NOT NULL,      -- CRC-32 of the post, plus consumed * 2^32
    body     BLOB    NOT NULL
);
CREATE UNIQUE INDEX hf_posts_seq ON hf_posts (run, seq);
CREATE UNIQUE INDEX hf_posts_key ON hf_posts (run, key);

CREATE TABLE hf_chunks (
    run     INTEGER NOT NULL,
    seq     INTEGER NOT NULL,       -- the entry it follows, stamped by the insert itself
    fence   INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    step    TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    offset  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    enc     INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (run, seq, fence, number)
) WITHOUT ROWID;

CREATE TABLE hf_blobs (
    id         INTEGER PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    digest     BLOB    NOT NULL,
    enc        INTEGER NOT NULL,
    touched_at INTEGER NOT NULL,
    body       BLOB    NOT NULL
);
CREATE UNIQUE INDEX hf_blobs_digest ON hf_blobs (tenant, digest);

CREATE TABLE hf_blob_refs (
    run  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    blob INTEGER NOT NULL,
    PRIMARY KEY (run, seq, blob)
) WITHOUT ROWID;
CREATE INDEX hf_blob_refs_blob ON hf_blob_refs (blob);

-- Per channel: total = free + reserved + spent. `unknown` marks a channel where something was spent that nobody counted.
CREATE TABLE hf_budgets (
    run      INTEGER NOT NULL,
    channel  TEXT    NOT NULL,
    total    INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    spent    INTEGER NOT NULL,
    unknown  INTEGER NOT NULL,
    PRIMARY KEY (run, channel)
) WITHOUT ROWID;

CREATE TABLE hf_conversations (
    tenant       TEXT    NOT NULL,
    conversation TEXT    NOT NULL,
    active_run   INTEGER,
    last_turn    INTEGER NOT NULL,
    harness      TEXT,
    cursor       BLOB,
    PRIMARY KEY (tenant, conversation)
) WITHOUT ROWID;
