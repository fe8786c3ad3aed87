-- Forks. The run that wrote shared entries is named too, since their checksums are bound to it and its row may be gone.
-- Nothing was ever written to the table that this one takes the place of.
DROP TABLE holdfast.hf_lineage;
CREATE TABLE holdfast.hf_lineage (
    run   bigint NOT NULL,
    up_to bigint NOT NULL,          -- the last entry of this share
    owner bigint NOT NULL,          -- the number of the run that wrote it
    base  uuid   NOT NULL,          -- that run's id
    word  text,                     -- in the last share: of forks asked for under one word, of one run, there is one
    PRIMARY KEY (run, up_to)
);
CREATE UNIQUE INDEX hf_lineage_owner ON holdfast.hf_lineage (owner, word);
