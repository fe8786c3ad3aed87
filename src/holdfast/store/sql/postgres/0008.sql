-- Conversations. Of each one turn is active, and what it commits must match `active_run`; the turns that wait for it are
-- `behind`, and no claim finds them. Turns are numbered by `last_turn`, and numbers are not given again.
ALTER TABLE holdfast.hf_runs ADD COLUMN behind smallint NOT NULL DEFAULT 0;
ALTER TABLE holdfast.hf_conversations ADD COLUMN over bigint NOT NULL DEFAULT 0;
ALTER TABLE holdfast.hf_conversations ADD COLUMN reached bigint NOT NULL DEFAULT 0;
ALTER TABLE holdfast.hf_conversations ADD COLUMN metadata bytea;
ALTER TABLE holdfast.hf_conversations ADD COLUMN guard bigint;
CREATE INDEX hf_conversations_idle ON holdfast.hf_conversations (tenant, conversation)
 WHERE active_run IS NULL AND over < last_turn;
CREATE UNIQUE INDEX hf_conversations_active ON holdfast.hf_conversations (active_run) WHERE active_run IS NOT NULL;
CREATE UNIQUE INDEX hf_runs_turn ON holdfast.hf_runs (tenant, conversation, turn) WHERE conversation IS NOT NULL;

DROP INDEX holdfast.hf_runs_due;
DROP INDEX holdfast.hf_runs_suspect;
DROP INDEX holdfast.hf_runs_posted;
CREATE INDEX hf_runs_due ON holdfast.hf_runs (name, refused, (number % 16), due_at)
 WHERE owner IS NULL AND due_at IS NOT NULL AND stalls <= 0 AND behind = 0;
CREATE INDEX hf_runs_suspect ON holdfast.hf_runs (name, refused, stalls, due_at)
 WHERE owner IS NULL AND due_at IS NOT NULL AND stalls > 0 AND behind = 0;
CREATE INDEX hf_runs_posted ON holdfast.hf_runs (name, refused)
 WHERE owner IS NULL AND inbox_seq > seen_seq AND behind = 0;

-- Number a new run as the next turn of its conversation, whose row is locked until the run is there; say whether it is
-- its turn at once. A damaged counter gives no number twice: the turns themselves are asked too.
CREATE FUNCTION holdfast.hf_take_turn(
    p_tenant text, p_conversation text, p_number bigint, OUT turn bigint, OUT behind smallint
)
LANGUAGE plpgsql
AS $$
DECLARE
    c holdfast.hf_conversations;
BEGIN
    INSERT INTO holdfast.hf_conversations (tenant, conversation, last_turn) VALUES (p_tenant, p_conversation, 0)
    ON CONFLICT (tenant, conversation) DO NOTHING;
    SELECT * INTO c FROM holdfast.hf_conversations t
     WHERE t.tenant = p_tenant AND t.conversation = p_conversation FOR UPDATE;
    SELECT 1 + greatest(c.last_turn, coalesce(max(r.turn), 0)) INTO turn FROM holdfast.hf_runs r
     WHERE r.tenant = p_tenant AND r.conversation = p_conversation;
    behind := CASE WHEN c.active_run IS NULL AND NOT EXISTS (
        SELECT 1 FROM holdfast.hf_runs r
         WHERE r.tenant = p_tenant AND r.conversation = p_conversation AND r.turn > c.over
           AND r.status NOT IN ('completed', 'failed', 'cancelled', 'quarantined')) THEN 0 ELSE 1 END;
    UPDATE holdfast.hf_conversations t
       SET last_turn = turn, active_run = CASE WHEN behind = 0 THEN p_number ELSE t.active_run END,
           over = CASE WHEN behind = 0 THEN turn - 1 ELSE t.over END
     WHERE t.tenant = p_tenant AND t.conversation = p_conversation;
END $$;

-- Make active the next turn of conversations that have none; return how many. The conversation is locked before the run
-- that it calls, which nobody does the other way round while no turn is active.
CREATE FUNCTION holdfast.hf_call_turns(p_most bigint) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    c record;
    next_run record;
    called bigint := 0;
BEGIN
    FOR c IN
        SELECT t.tenant, t.conversation, t.over, t.last_turn FROM holdfast.hf_conversations t
         WHERE t.active_run IS NULL AND t.over < t.last_turn LIMIT p_most FOR UPDATE SKIP LOCKED
    LOOP
        LOOP
            SELECT r.number, r.turn INTO next_run FROM holdfast.hf_runs r
             WHERE r.tenant = c.tenant AND r.conversation = c.conversation AND r.turn > c.over
               AND r.status NOT IN ('completed', 'failed', 'cancelled', 'quarantined') ORDER BY r.turn LIMIT 1;
            EXIT WHEN next_run.number IS NULL;
            -- One that was ended meanwhile, since that was asked for, is passed over.
            UPDATE holdfast.hf_runs r SET behind = 0
             WHERE r.number = next_run.number AND r.status NOT IN ('completed', 'failed', 'cancelled', 'quarantined');
            EXIT WHEN FOUND;
        END LOOP;
        UPDATE holdfast.hf_conversations t
           SET active_run = next_run.number, over = coalesce(next_run.turn - 1, c.last_turn)
         WHERE t.tenant = c.tenant AND t.conversation = c.conversation;
        called := called + 1;
    END LOOP;
    RETURN called;
END $$;

-- Make a turn that was set aside active again, if none is and no later one has written anything; say whether it is, or
-- whether at least its end was asked for.
CREATE FUNCTION holdfast.hf_return_turn(p_number bigint) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    r holdfast.hf_runs;
BEGIN
    SELECT * INTO r FROM holdfast.hf_runs t WHERE t.number = p_number FOR NO KEY UPDATE;
    IF r.status = 'quarantined' AND r.owner IS NULL AND r.behind <> 0 THEN
        UPDATE holdfast.hf_conversations c SET active_run = p_number
         WHERE c.tenant = r.tenant AND c.conversation = r.conversation AND c.active_run IS NULL
           AND c.reached <= r.turn;
        IF FOUND THEN
            UPDATE holdfast.hf_runs t SET behind = 0 WHERE t.number = p_number;
            RETURN 'active';
        END IF;
    END IF;
    IF r.behind <> 0 AND EXISTS (SELECT 1 FROM holdfast.hf_posts p WHERE p.run = p_number AND p.key = 'cancel') THEN
        RETURN 'ending';
    END IF;
    RETURN CASE WHEN r.behind = 0 THEN 'active' END;
END $$;

-- Commit runs some of which are turns (`t_…` is null for the others): a turn must be active, or come to an end that was
-- asked for. What ends or is quarantined is over. A batch without turns does not come here.
CREATE FUNCTION holdfast.hf_commit_turns(
    p_number bigint[], p_owner bigint[], p_fence bigint[], p_after bigint[], p_seq bigint[], p_head bytea[],
    p_at bigint[], p_stalls bigint[], p_guard bigint[], p_control bigint[], p_inbox bigint[],
    p_status text[], p_reason text[], p_due bigint[], p_refused text[], p_seen bigint[],
    e_place bigint[], e_run bigint[], e_seq bigint[], e_kind text[], e_version bigint[], e_at bigint[], e_enc bigint[],
    e_body bytea[], e_checksum bytea[],
    d_place bigint[], d_run bigint[], d_step text[], c_place bigint[], c_run bigint[], c_seq bigint[], c_entry bigint[],
    t_tenant text[], t_conversation text[], t_turn bigint[]
) RETURNS TABLE (place bigint, owner bigint, fence bigint, last_seq bigint, inbox_seq bigint, control_seq bigint)
LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    others bigint[];
    fences bigint[] := p_fence;
    refused bigint[] := '{}';
    n bigint;
    found_row record;
BEGIN
    -- A lease is held only by the active turn, and leaves it in the commit that ends it: so a plain look will do.
    SELECT coalesce(array_agg(c.place), '{}') INTO others
      FROM unnest(p_number, t_tenant, t_conversation) WITH ORDINALITY AS c(number, tenant, conversation, place)
     WHERE c.conversation IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM holdfast.hf_conversations t
                        WHERE t.tenant = c.tenant AND t.conversation = c.conversation AND t.active_run = c.number)
       AND NOT EXISTS (SELECT 1 FROM holdfast.hf_posts p WHERE p.run = c.number AND p.key = 'cancel');
    FOREACH n IN ARRAY others LOOP
        fences[n] := -1;  -- nobody's
    END LOOP;
    FOR found_row IN SELECT * FROM holdfast.hf_commit(
        p_number, p_owner, fences, p_after, p_seq, p_head, p_at, p_stalls, p_guard, p_control, p_inbox, p_status,
        p_reason, p_due, p_refused, p_seen, e_place, e_run, e_seq, e_kind, e_version, e_at, e_enc, e_body, e_checksum,
        d_place, d_run, d_step, c_place, c_run, c_seq, c_entry)
    LOOP
        refused := array_append(refused, found_row.place);
        place := found_row.place;
        owner := CASE WHEN NOT found_row.place = ANY(others) THEN found_row.owner END;
        fence := found_row.fence;
        last_seq := found_row.last_seq;
        inbox_seq := found_row.inbox_seq;
        control_seq := found_row.control_seq;
        RETURN NEXT;
    END LOOP;
    PERFORM holdfast.hf_close_turns(
        array_agg(c.number), array_agg(c.turn), array_agg(c.seq), array_agg(c.status))
       FROM unnest(p_number, t_turn, p_seq, p_status) WITH ORDINALITY AS c(number, turn, seq, status, place)
      WHERE c.turn IS NOT NULL AND c.status IN ('completed', 'failed', 'cancelled', 'quarantined')
        AND NOT c.place = ANY(refused);
END $$;

-- Let turns be over that ended or were set aside, as far as they were active; what was set aside is behind the others.
CREATE FUNCTION holdfast.hf_close_turns(p_number bigint[], p_turn bigint[], p_seq bigint[], p_status text[])
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_number IS NULL THEN
        RETURN;
    END IF;
    PERFORM 1 FROM holdfast.hf_conversations c WHERE c.active_run = ANY(p_number)
      ORDER BY c.tenant, c.conversation FOR UPDATE;
    UPDATE holdfast.hf_conversations c
       SET active_run = NULL, over = greatest(c.over, t.turn),
           reached = greatest(c.reached, CASE WHEN t.seq > 1 THEN t.turn ELSE 0 END)
      FROM unnest(p_number, p_turn, p_seq) AS t(number, turn, seq) WHERE c.active_run = t.number;
    UPDATE holdfast.hf_runs r SET behind = 1
      FROM unnest(p_number, p_status) AS t(number, status) WHERE r.number = t.number AND t.status = 'quarantined';
END $$;
