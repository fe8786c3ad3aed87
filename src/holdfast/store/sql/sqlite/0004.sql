-- Forks. The run that wrote shared entries is named too, since their checksums are bound to it and its row may be gone.
-- Nothing was ever written to the table that this one takes the place of.
DROP TABLE hf_lineage;
CREATE TABLE hf_lineage (
    run   INTEGER NOT NULL,
    up_to INTEGER NOT NULL,         -- the last entry of this share
    owner INTEGER NOT NULL,         -- the number of the run that wrote it
    base  BLOB    NOT NULL,         -- that run's id
    word  TEXT,                     -- in the last share: of forks asked for under one word, of one run, there is one
    PRIMARY KEY (run, up_to)
) WITHOUT ROWID;
CREATE UNIQUE INDEX hf_lineage_owner ON hf_lineage (owner, word);
