-- Versions of code, by the name that they serve, in the order in which they were first registered: forward is upwards.
CREATE TABLE holdfast.hf_versions (
    place         bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name          text   NOT NULL,
    code          text   NOT NULL,  -- as given, else a digest of the source
    source        text   NOT NULL,  -- a digest of the source
    registered_at bigint NOT NULL,
    UNIQUE (name, code)
);

-- By what a run wants of the code that drives it, so that a claim passes over what it may not have without a look.
DROP INDEX holdfast.hf_runs_due;
DROP INDEX holdfast.hf_runs_posted;
CREATE INDEX hf_runs_due ON holdfast.hf_runs (name, refused, (number % 16), due_at)
 WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX hf_runs_posted ON holdfast.hf_runs (name, refused) WHERE owner IS NULL AND inbox_seq > seen_seq;
CREATE INDEX hf_runs_asked ON holdfast.hf_runs (name) WHERE owner IS NULL AND control_seq > seen_seq;
