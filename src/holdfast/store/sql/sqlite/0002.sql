-- What a worker says of itself, for people who look; and when it last beat, which no rule goes by.
ALTER TABLE hf_workers ADD COLUMN about TEXT NOT NULL DEFAULT '{}';
ALTER TABLE hf_workers ADD COLUMN beat_at INTEGER;
