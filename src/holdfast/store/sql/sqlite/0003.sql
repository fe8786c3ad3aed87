-- Limits that all workers of the store share, as they were last declared.
CREATE TABLE hf_limits (
    name    TEXT    NOT NULL,
    at_once INTEGER,                -- how many steps may be under way; null: any number
    starts  INTEGER,                -- how many may start within `span`; null: any number
    span    INTEGER NOT NULL,       -- µs
    kept    INTEGER NOT NULL,       -- how many starts are remembered: the most that any declaration needed
    asked   INTEGER NOT NULL,       -- tickets given out so far
    started INTEGER NOT NULL,       -- starts counted so far
    PRIMARY KEY (name)
) WITHOUT ROWID;

-- The last starts under a limit that counts them: the one `starts` ago says whether there may be another.
CREATE TABLE hf_starts (
    name   TEXT    NOT NULL,
    number INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (name, number)
) WITHOUT ROWID;

-- A step's slot, or its place in the queue. It counts only while its run has an owner and this fence, so nobody has to
-- take it from the dead.
CREATE TABLE hf_tickets (
    run        INTEGER NOT NULL,
    step       TEXT    NOT NULL,
    fence      INTEGER NOT NULL,
    name       TEXT    NOT NULL,
    number     INTEGER NOT NULL,    -- the order of asking, for each limit
    tenant     TEXT    NOT NULL,
    priority   INTEGER NOT NULL,
    granted_at INTEGER,             -- null: it waits
    PRIMARY KEY (run, step)
) WITHOUT ROWID;
CREATE INDEX hf_tickets_queue ON hf_tickets (name, priority, tenant, number) WHERE granted_at IS NULL;
CREATE INDEX hf_tickets_held ON hf_tickets (name, tenant) WHERE granted_at IS NOT NULL;
