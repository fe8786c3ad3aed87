-- What callback tokens are made with: whoever knows it can answer any wait, so it is never shown.
ALTER TABLE holdfast.hf_store ADD COLUMN secret bytea;
UPDATE holdfast.hf_store SET secret = sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea);
