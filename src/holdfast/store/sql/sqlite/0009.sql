-- Shelves: ordered maps of bytes that are kept beside runs, each small and written by few. An append-ordered table, like
-- that of the entries: clustering by key would spill large bodies to pages of their own.
CREATE TABLE hf_shelves (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    shelf TEXT NOT NULL,
    UNIQUE (tenant, shelf)
);
CREATE TABLE hf_items (
    shelf INTEGER NOT NULL,
    key BLOB NOT NULL,
    body BLOB NOT NULL,
    checksum BLOB NOT NULL
);
CREATE UNIQUE INDEX hf_items_key ON hf_items (shelf, key);
