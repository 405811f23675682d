-- Every event id that a client chose and that the roll-ups already count.
SELECT DISTINCT run_id, kind, event_id
FROM (
    SELECT run_id, kind, event_id FROM rolled_client_id
    UNION ALL
    SELECT run_id, kind, event_id FROM unrolled_stored_event
    WHERE event_id IS NOT NULL AND at_us BETWEEN 0 AND 4611686018427387
);
