-- A worker that dies leaves as many places in a queue as it had runs: they go many at a time, not one by one.
CREATE OR REPLACE FUNCTION holdfast.hf_serve(
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
            -- Who waited for a worker that died waited beside many others.
            DELETE FROM holdfast.hf_tickets t USING (
                SELECT d.run, d.step FROM holdfast.hf_tickets d JOIN (
                    SELECT q.run, q.step, q.fence FROM holdfast.hf_tickets q
                     WHERE q.name = p_name AND q.granted_at IS NULL AND q.priority = head.priority
                       AND q.tenant = head.tenant
                     ORDER BY q.number LIMIT 512) AS behind ON d.run = behind.run AND d.step = behind.step
                 WHERE NOT holdfast.hf_lives(behind.run, behind.fence)
                   FOR UPDATE OF d SKIP LOCKED) AS dead
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
