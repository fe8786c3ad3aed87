-- Shelves: ordered maps of bytes that are kept beside runs, each small and written by few.
CREATE TABLE holdfast.hf_shelves (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    shelf text COLLATE "C" NOT NULL,
    UNIQUE (tenant, shelf)
);
CREATE TABLE holdfast.hf_items (
    shelf bigint NOT NULL,
    key bytea NOT NULL,
    body bytea NOT NULL,
    checksum bytea NOT NULL,
    PRIMARY KEY (shelf, key)
);

-- Change a shelf, whose row is locked until it is done; false when it is not as it was seen, unless all that was to be
-- put is there: the same was asked for before, and the answer was lost.
CREATE FUNCTION holdfast.hf_arrange(
    p_tenant text, p_shelf text, p_first bytea, p_end bytea, p_last bytea, p_there bytea[], p_count bigint,
    d_first bytea[], d_end bytea[], p_key bytea[], p_body bytea[], p_checksum bytea[],
    a_key bytea[], a_body bytea[], a_checksum bytea[]
) RETURNS boolean
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    n bigint;
    found_last bytea;
    is_as_seen boolean := true;
    is_new boolean := false;
BEGIN
    LOOP
        SELECT s.number INTO n FROM holdfast.hf_shelves s
         WHERE s.tenant = p_tenant AND s.shelf = p_shelf FOR UPDATE;
        EXIT WHEN FOUND OR (cardinality(p_key) = 0 AND cardinality(a_key) = 0);
        INSERT INTO holdfast.hf_shelves (tenant, shelf) VALUES (p_tenant, p_shelf) ON CONFLICT DO NOTHING;
        is_new := FOUND;
    END LOOP;
    IF p_first IS NOT NULL THEN
        SELECT i.key INTO found_last FROM holdfast.hf_items i
         WHERE i.shelf = n AND i.key >= p_first AND i.key < p_end ORDER BY i.key DESC LIMIT 1;
        is_as_seen := found_last IS NOT DISTINCT FROM p_last;
    END IF;
    IF p_count IS NOT NULL THEN
        is_as_seen := is_as_seen AND p_count = (SELECT count(*) FROM holdfast.hf_items i WHERE i.shelf = n);
    END IF;
    is_as_seen := is_as_seen AND NOT EXISTS (
        SELECT 1 FROM unnest(p_there) AS t(key) WHERE NOT EXISTS (
            SELECT 1 FROM holdfast.hf_items i WHERE i.shelf = n AND i.key = t.key));
    IF NOT is_as_seen AND (cardinality(p_key) = 0 OR EXISTS (
        SELECT 1 FROM unnest(p_key, p_checksum) AS p(key, checksum) WHERE NOT EXISTS (
            SELECT 1 FROM holdfast.hf_items i WHERE i.shelf = n AND i.key = p.key AND i.checksum = p.checksum))) THEN
        IF is_new THEN
            DELETE FROM holdfast.hf_shelves s WHERE s.number = n;
        END IF;
        RETURN false;
    END IF;
    DELETE FROM holdfast.hf_items i USING unnest(d_first, d_end) AS d(first, past)
     WHERE i.shelf = n AND i.key >= d.first AND i.key < d.past;
    INSERT INTO holdfast.hf_items (shelf, key, body, checksum)
    SELECT n, p.key, p.body, p.checksum FROM unnest(p_key, p_body, p_checksum) AS p(key, body, checksum)
    ON CONFLICT (shelf, key) DO UPDATE SET body = excluded.body, checksum = excluded.checksum;
    INSERT INTO holdfast.hf_items (shelf, key, body, checksum)
    SELECT n, a.key, a.body, a.checksum FROM unnest(a_key, a_body, a_checksum) AS a(key, body, checksum)
    ON CONFLICT (shelf, key) DO NOTHING;
    RETURN true;
END $$;

-- Copy a shelf, if there is none of that name.
CREATE FUNCTION holdfast.hf_copy_shelf(p_tenant text, p_shelf text, p_target text) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    source bigint;
    copied bigint;
BEGIN
    SELECT s.number INTO source FROM holdfast.hf_shelves s
     WHERE s.tenant = p_tenant AND s.shelf = p_shelf FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NOT EXISTS (SELECT 1 FROM holdfast.hf_shelves s WHERE s.tenant = p_tenant AND s.shelf = p_target);
    END IF;
    INSERT INTO holdfast.hf_shelves (tenant, shelf) VALUES (p_tenant, p_target) ON CONFLICT DO NOTHING
    RETURNING number INTO copied;
    IF copied IS NULL THEN  -- it may be the copy that was asked for before
        RETURN NOT EXISTS (
            SELECT 1 FROM holdfast.hf_items i JOIN holdfast.hf_shelves s ON s.number = i.shelf
             WHERE i.shelf = source OR (s.tenant = p_tenant AND s.shelf = p_target)
             GROUP BY i.key, i.checksum HAVING count(*) < 2);
    END IF;
    INSERT INTO holdfast.hf_items (shelf, key, body, checksum)
    SELECT copied, i.key, i.body, i.checksum FROM holdfast.hf_items i WHERE i.shelf = source;
    RETURN true;
END $$;

-- Remove a shelf. Its row is locked first, so that nobody who is changing it leaves items behind.
CREATE FUNCTION holdfast.hf_discard_shelf(p_tenant text, p_shelf text) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    n bigint;
BEGIN
    DELETE FROM holdfast.hf_shelves s WHERE s.tenant = p_tenant AND s.shelf = p_shelf RETURNING s.number INTO n;
    DELETE FROM holdfast.hf_items i WHERE i.shelf = n;
END $$;
