-- What callback tokens are made with: whoever knows it can answer any wait, so it is never shown.
ALTER TABLE hf_store ADD COLUMN secret BLOB;
UPDATE hf_store SET secret = randomblob(32);
