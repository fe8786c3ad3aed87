-- Limits that all workers of the store share, as they were last declared. Whoever gives out slots locks the limit's row
-- first, several by name; nobody who holds it waits for a run or a ticket, so commits and limits never wait in a circle.
CREATE TABLE holdfast.hf_limits (
    name    text   PRIMARY KEY,
    at_once bigint,                 -- how many steps may be under way; null: any number
    starts  bigint,                 -- how many may start within `span`; null: any number
    span    bigint NOT NULL,        -- µs
    kept    bigint NOT NULL,        -- how many starts are remembered: the most that any declaration needed
    asked   bigint NOT NULL,        -- tickets given out so far
    started bigint NOT NULL         -- starts counted so far
) WITH (fillfactor = 50);

-- The last starts under a limit that counts them: the one `starts` ago says whether there may be another.
CREATE TABLE holdfast.hf_starts (
    name   text   NOT NULL,
    number bigint NOT NULL,
    at     bigint NOT NULL,
    PRIMARY KEY (name, number)
);

-- A step's slot, or its place in the queue. It counts only while its run has an owner and this fence, so nobody has to
-- take it from the dead.
CREATE TABLE holdfast.hf_tickets (
    run        bigint NOT NULL,
    step       text   NOT NULL,
    fence      bigint NOT NULL,
    name       text   NOT NULL,
    number     bigint NOT NULL,     -- the order of asking, for each limit
    tenant     text   NOT NULL,
    priority   bigint NOT NULL,
    granted_at bigint,              -- null: it waits
    PRIMARY KEY (run, step)
);
CREATE INDEX hf_tickets_queue ON holdfast.hf_tickets (name, priority, tenant, number) WHERE granted_at IS NULL;
CREATE INDEX hf_tickets_held ON holdfast.hf_tickets (name, tenant) WHERE granted_at IS NOT NULL;

CREATE FUNCTION holdfast.hf_lives(p_run bigint, p_fence bigint) RETURNS boolean
LANGUAGE sql STABLE
AS $$ SELECT EXISTS (SELECT 1 FROM holdfast.hf_runs r WHERE r.number = p_run AND r.fence = p_fence AND r.owner IS NOT NULL) $$;

-- Return the ticket that is next: the highest priority, then the tenant that holds fewest slots, then the oldest. Only the
-- first ticket of each tenant is looked at, found without walking the queue.
CREATE FUNCTION holdfast.hf_first(p_name text) RETURNS SETOF holdfast.hf_tickets
LANGUAGE plpgsql
AS $$
DECLARE
    top bigint;
BEGIN
    SELECT max(q.priority) INTO top FROM holdfast.hf_tickets q WHERE q.name = p_name AND q.granted_at IS NULL;
    RETURN QUERY
    WITH RECURSIVE tenants (tenant) AS (
        SELECT min(q.tenant) FROM holdfast.hf_tickets q
         WHERE q.name = p_name AND q.granted_at IS NULL AND q.priority = top
        UNION ALL
        SELECT (SELECT min(q.tenant) FROM holdfast.hf_tickets q
                 WHERE q.name = p_name AND q.granted_at IS NULL AND q.priority = top AND q.tenant > tenants.tenant)
          FROM tenants WHERE tenants.tenant IS NOT NULL
    )
    SELECT head.* FROM tenants, LATERAL (
        SELECT q.* FROM holdfast.hf_tickets q
         WHERE q.name = p_name AND q.granted_at IS NULL AND q.priority = top AND q.tenant = tenants.tenant
         ORDER BY q.number LIMIT 1) AS head
     ORDER BY (SELECT count(*) FROM holdfast.hf_tickets h
                WHERE h.name = p_name AND h.tenant = head.tenant AND h.granted_at IS NOT NULL
                  AND holdfast.hf_lives(h.run, h.fence)), head.number LIMIT 1;
END $$;

-- Grant what may be granted now under a limit whose row the caller has locked. If anything moved, whoever is first now
-- should look too. Return how it stands, and the runs that should look. A ticket that a commit is about to give back is
-- passed over: that commit's process comes here next.
CREATE FUNCTION holdfast.hf_serve(
    p_name text, p_now bigint, p_moved boolean, OUT first_run bigint, OUT first_step text, OUT start_at bigint,
    OUT now bigint, OUT woken bigint[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    l holdfast.hf_limits;
    head holdfast.hf_tickets;
    held bigint;
    moved boolean := p_moved;
BEGIN
    woken := '{}';
    -- Asked only now, when the lock is held: whoever waited for it must not count with the time before.
    now := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    SELECT * INTO l FROM holdfast.hf_limits WHERE name = p_name;
    DELETE FROM holdfast.hf_tickets t USING (
        SELECT d.run, d.step FROM holdfast.hf_tickets d
         WHERE d.name = p_name AND d.granted_at IS NOT NULL AND NOT holdfast.hf_lives(d.run, d.fence)
           FOR UPDATE SKIP LOCKED) AS dead
     WHERE t.run = dead.run AND t.step = dead.step;
    moved := moved OR FOUND;
    SELECT count(*) INTO held FROM holdfast.hf_tickets t
     WHERE t.name = p_name AND t.granted_at IS NOT NULL AND holdfast.hf_lives(t.run, t.fence);
    IF l.starts IS NOT NULL THEN
        -- A clock that was set back must not hold the limit up for longer than its span.
        UPDATE holdfast.hf_starts s SET at = now WHERE s.name = p_name AND s.at > now;
    END IF;
    LOOP
        SELECT * INTO head FROM holdfast.hf_first(p_name);
        EXIT WHEN head.run IS NULL;
        IF NOT holdfast.hf_lives(head.run, head.fence) THEN
            DELETE FROM holdfast.hf_tickets t USING (
                SELECT d.run, d.step FROM holdfast.hf_tickets d WHERE d.run = head.run AND d.step = head.step
                   FOR UPDATE SKIP LOCKED) AS dead
             WHERE t.run = dead.run AND t.step = dead.step;
            EXIT WHEN NOT FOUND;
            moved := true;
            CONTINUE;
        END IF;
        start_at := NULL;
        EXIT WHEN held >= l.at_once;
        SELECT s.at + l.span INTO start_at FROM holdfast.hf_starts s
         WHERE s.name = p_name AND s.number = l.started + 1 - l.starts;
        EXIT WHEN start_at > now;
        UPDATE holdfast.hf_tickets t SET granted_at = now FROM (
            SELECT g.run, g.step FROM holdfast.hf_tickets g
             WHERE g.run = head.run AND g.step = head.step AND g.granted_at IS NULL FOR UPDATE SKIP LOCKED) AS free
         WHERE t.run = free.run AND t.step = free.step;
        EXIT WHEN NOT FOUND;
        held := held + 1;
        woken := array_append(woken, head.run);
        moved := true;
        IF l.starts IS NOT NULL THEN
            l.started := l.started + 1;
            INSERT INTO holdfast.hf_starts (name, number, at) VALUES (p_name, l.started, now)
            ON CONFLICT (name, number) DO UPDATE SET at = excluded.at;
            DELETE FROM holdfast.hf_starts s WHERE s.name = p_name AND s.number <= l.started - l.kept;
        END IF;
    END LOOP;
    UPDATE holdfast.hf_limits SET started = l.started WHERE name = p_name AND started <> l.started;
    first_run := head.run;
    first_step := head.step;
    IF moved AND head.run IS NOT NULL THEN
        woken := array_append(woken, head.run);
    END IF;
END $$;

-- Give back the slots and places `f_…`, ask for those of `p_…` as many as the arrays have places, and serve these limits
-- and those of `s_name` (null among them: all that are waited for). Return how each place stands, and, without a place,
-- the runs that should look.
CREATE FUNCTION holdfast.hf_turns(
    p_name text[], p_at_once bigint[], p_starts bigint[], p_span bigint[], p_run bigint[], p_owner bigint[],
    p_fence bigint[], p_step text[], p_tenant text[], p_priority bigint[],
    f_run bigint[], f_fence bigint[], f_step text[], s_name text[], p_now bigint
) RETURNS TABLE (place bigint, state text, start_at bigint, at bigint, run uuid)
LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    freed text[];
    names text[];
    each_name text;
    served record;
    firsts bigint[] := '{}';
    first_steps text[] := '{}';
    starts_at bigint[] := '{}';
    nows bigint[] := '{}';
    woken bigint[] := '{}';
BEGIN
    WITH gone AS (
        DELETE FROM holdfast.hf_tickets t USING unnest(f_run, f_fence, f_step) AS f(run, fence, step)
         WHERE t.run = f.run AND t.fence = f.fence AND t.step = f.step RETURNING t.name
    )
    SELECT coalesce(array_agg(DISTINCT gone.name), '{}') INTO freed FROM gone;
    SELECT array_agg(n.name ORDER BY n.name) INTO names FROM (
        SELECT unnest(p_name) AS name UNION SELECT unnest(freed) UNION SELECT unnest(s_name)
        UNION SELECT q.name FROM holdfast.hf_tickets q WHERE q.granted_at IS NULL AND array_position(s_name, NULL) > 0
    ) n WHERE n.name IS NOT NULL;
    PERFORM 1 FROM holdfast.hf_limits l WHERE l.name = ANY(names) ORDER BY l.name FOR UPDATE;
    INSERT INTO holdfast.hf_limits AS l (name, at_once, starts, span, kept, asked, started)
    SELECT DISTINCT ON (c.name) c.name, c.at_once, c.starts, c.span, coalesce(c.starts, 0), 0, 0
      FROM unnest(p_name, p_at_once, p_starts, p_span, p_run, p_owner, p_fence) WITH ORDINALITY
        AS c(name, at_once, starts, span, run, owner, fence, place)
      JOIN holdfast.hf_runs r ON r.number = c.run AND r.owner + 0 = c.owner AND r.fence = c.fence
     ORDER BY c.name, c.place DESC
    ON CONFLICT (name) DO UPDATE SET at_once = excluded.at_once, starts = excluded.starts, span = excluded.span,
       kept = greatest(l.kept, excluded.kept)
     WHERE (l.at_once, l.starts, l.span) IS DISTINCT FROM (excluded.at_once, excluded.starts, excluded.span);
    -- Only for leases that are held, and only where the place is not the lease's own already.
    WITH new AS (
        INSERT INTO holdfast.hf_tickets AS t (run, step, fence, name, number, tenant, priority, granted_at)
        SELECT c.run, c.step, c.fence, c.name,
               l.asked + row_number() OVER (PARTITION BY c.name ORDER BY c.place), c.tenant, c.priority, NULL
          FROM unnest(p_name, p_run, p_owner, p_fence, p_step, p_tenant, p_priority) WITH ORDINALITY
            AS c(name, run, owner, fence, step, tenant, priority, place)
          JOIN holdfast.hf_runs r ON r.number = c.run AND r.owner + 0 = c.owner AND r.fence = c.fence
          JOIN holdfast.hf_limits l ON l.name = c.name
         WHERE NOT EXISTS (SELECT 1 FROM holdfast.hf_tickets o
                            WHERE o.run = c.run AND o.step = c.step AND o.fence = c.fence AND o.name = c.name)
        ON CONFLICT (run, step) DO UPDATE SET fence = excluded.fence, name = excluded.name, number = excluded.number,
           tenant = excluded.tenant, priority = excluded.priority, granted_at = NULL
        RETURNING t.name, t.number
    )
    UPDATE holdfast.hf_limits l SET asked = n.asked
      FROM (SELECT new.name, max(new.number) AS asked FROM new GROUP BY new.name) n WHERE l.name = n.name;
    FOREACH each_name IN ARRAY coalesce(names, '{}') LOOP
        SELECT s.* INTO served FROM holdfast.hf_serve(
            each_name, p_now, each_name = ANY(freed) OR coalesce(each_name = ANY(s_name), false)) s;
        firsts := array_append(firsts, served.first_run);
        first_steps := array_append(first_steps, served.first_step);
        starts_at := array_append(starts_at, served.start_at);
        nows := array_append(nows, served.now);
        woken := array_cat(woken, served.woken);
    END LOOP;
    RETURN QUERY
    SELECT c.place,
           CASE WHEN NOT coalesce(r.owner = c.owner AND r.fence = c.fence, false) OR t.run IS NULL THEN 'lost'
                WHEN t.granted_at IS NOT NULL THEN 'granted'
                WHEN firsts[s.nth] = c.run AND first_steps[s.nth] = c.step THEN 'first' ELSE 'queued' END,
           starts_at[s.nth], nows[s.nth], NULL::uuid
      FROM unnest(p_name, p_run, p_owner, p_fence, p_step) WITH ORDINALITY AS c(name, run, owner, fence, step, place)
      JOIN unnest(names) WITH ORDINALITY AS s(name, nth) ON s.name = c.name
      LEFT JOIN holdfast.hf_runs r ON r.number = c.run
      LEFT JOIN holdfast.hf_tickets t ON t.run = c.run AND t.step = c.step AND t.fence = c.fence AND t.name = c.name
     ORDER BY c.place;
    RETURN QUERY
    SELECT NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, r.run FROM holdfast.hf_runs r
     WHERE r.number = ANY(woken) AND NOT r.number = ANY(p_run);
END $$;
