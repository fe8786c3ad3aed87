-- Versions of code, by the name that they serve, in the order in which they were first registered: forward is upwards.
CREATE TABLE hf_versions (
    place         INTEGER PRIMARY KEY AUTOINCREMENT,
    name          TEXT    NOT NULL,
    code          TEXT    NOT NULL, -- as given, else a digest of the source
    source        TEXT    NOT NULL, -- a digest of the source
    registered_at INTEGER NOT NULL,
    UNIQUE (name, code)
);

-- By what a run wants of the code that drives it, so that a claim passes over what it may not have without a look.
DROP INDEX hf_runs_due;
DROP INDEX hf_runs_posted;
CREATE INDEX hf_runs_due ON hf_runs (name, refused, due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX hf_runs_posted ON hf_runs (name, refused) WHERE owner IS NULL AND inbox_seq > seen_seq;
CREATE INDEX hf_runs_asked ON hf_runs (name) WHERE owner IS NULL AND control_seq > seen_seq;
