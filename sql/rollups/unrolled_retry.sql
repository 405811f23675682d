-- Repeated events that the roll-ups do not count yet: all events of an id but the first, as in `retry`, and all events
-- if the roll-ups count a record of the id. Few row groups of the counted ids can contain such an id: the groups of
-- their runs, between the first and the last of them. Only a join that keeps rows of
-- the side that is read lets DuckDB leave out the others. Ids of turns begin with the time; those of other kinds lie
-- anywhere, and would stretch their range.
WITH named AS MATERIALIZED (
    SELECT writer, seq, run_id, kind, event_id
    FROM unrolled_stored_event
    WHERE event_id IS NOT NULL AND at_us BETWEEN 0 AND 4611686018427387
),
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
SELECT writer, seq
FROM named
LEFT JOIN writer_order USING (writer)
QUALIFY row_number() OVER (PARTITION BY run_id, kind, event_id ORDER BY place, writer, seq) > 1
UNION
SELECT writer, seq FROM named SEMI JOIN counted USING (run_id, kind, event_id);
