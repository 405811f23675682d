-- Every event that the roll-ups do not count yet, each once, as in the view `event`.
WITH named AS MATERIALIZED (
    SELECT writer, seq, run_id, kind, event_id, at_us
    FROM unrolled_stored_event
    WHERE event_id IS NOT NULL AND at_us BETWEEN 0 AND 4611686018427387
),
retry AS (
    SELECT writer, seq
    FROM named
    QUALIFY row_number() OVER (PARTITION BY run_id, kind, event_id ORDER BY at_us, writer, seq) > 1
),
-- Of all ids that are counted, few row groups can have one of these: those of their runs, and between the first and the
-- last of them. Only a join that keeps rows of the side that is read lets DuckDB leave out the others. Ids of turns begin
-- with the time; those of other kinds lie anywhere and would stretch their range.
running AS MATERIALIZED (SELECT DISTINCT run_id FROM named),
counted AS (
    FROM rolled_client_id
    SEMI JOIN running USING (run_id)
    SEMI JOIN (FROM named WHERE kind = 'turn') AS new USING (run_id, kind, event_id)
    WHERE kind = 'turn'
    UNION ALL BY NAME
    FROM rolled_client_id
    SEMI JOIN running USING (run_id)
    SEMI JOIN (FROM named WHERE kind != 'turn') AS new USING (run_id, kind, event_id)
    WHERE kind != 'turn'
)
SELECT stored.* REPLACE (coalesce(stored.event_id, stored.writer || '/' || stored.seq) AS event_id)
FROM unrolled_stored_event AS stored
ANTI JOIN retry ON stored.writer = retry.writer AND stored.seq = retry.seq
ANTI JOIN counted
    ON stored.run_id = counted.run_id AND stored.kind = counted.kind AND stored.event_id = counted.event_id
WHERE stored.at_us BETWEEN 0 AND 4611686018427387;
