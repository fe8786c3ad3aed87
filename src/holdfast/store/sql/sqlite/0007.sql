-- A claim looks for what is due and, apart from that, for the least suspicious of those whose last owner left them
-- without progress: neither walks past the others, however many there are.
DROP INDEX hf_runs_due;
CREATE INDEX hf_runs_due ON hf_runs (name, refused, due_at)
 WHERE owner IS NULL AND due_at IS NOT NULL AND stalls <= 0;
CREATE INDEX hf_runs_suspect ON hf_runs (name, refused, stalls, due_at)
 WHERE owner IS NULL AND due_at IS NOT NULL AND stalls > 0;
