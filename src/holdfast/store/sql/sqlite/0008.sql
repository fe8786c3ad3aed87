-- Conversations. Of each one turn is active, and what it commits must match `active_run`; the turns that wait for it are
-- `behind`, and no claim finds them. Turns are numbered by `last_turn`, and numbers are not given again.
ALTER TABLE hf_runs ADD COLUMN behind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hf_conversations ADD COLUMN over INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hf_conversations ADD COLUMN reached INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hf_conversations ADD COLUMN metadata BLOB;
ALTER TABLE hf_conversations ADD COLUMN guard INTEGER;
CREATE INDEX hf_conversations_idle ON hf_conversations (tenant, conversation)
 WHERE active_run IS NULL AND over < last_turn;
CREATE UNIQUE INDEX hf_conversations_active ON hf_conversations (active_run) WHERE active_run IS NOT NULL;
CREATE UNIQUE INDEX hf_runs_turn ON hf_runs (tenant, conversation, turn) WHERE conversation IS NOT NULL;

DROP INDEX hf_runs_due;
DROP INDEX hf_runs_suspect;
DROP INDEX hf_runs_posted;
CREATE INDEX hf_runs_due ON hf_runs (name, refused, due_at)
 WHERE owner IS NULL AND due_at IS NOT NULL AND stalls <= 0 AND behind = 0;
CREATE INDEX hf_runs_suspect ON hf_runs (name, refused, stalls, due_at)
 WHERE owner IS NULL AND due_at IS NOT NULL AND stalls > 0 AND behind = 0;
CREATE INDEX hf_runs_posted ON hf_runs (name, refused) WHERE owner IS NULL AND inbox_seq > seen_seq AND behind = 0;
