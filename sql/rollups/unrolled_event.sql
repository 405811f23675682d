-- Every event that the roll-ups do not count yet, each once, as in the view `event`.
SELECT stored.* REPLACE (coalesce(stored.event_id, stored.writer || '/' || stored.seq) AS event_id)
FROM unrolled_stored_event AS stored
ANTI JOIN (
    SELECT writer, seq
    FROM unrolled_stored_event
    WHERE event_id IS NOT NULL AND at_us BETWEEN 0 AND 4611686018427387
    QUALIFY row_number() OVER (PARTITION BY run_id, kind, event_id ORDER BY at_us, writer, seq) > 1
) AS retry ON stored.writer = retry.writer AND stored.seq = retry.seq
ANTI JOIN rolled_client_id AS counted
    ON stored.run_id = counted.run_id AND stored.kind = counted.kind AND stored.event_id = counted.event_id
WHERE stored.at_us BETWEEN 0 AND 4611686018427387;
