-- Every event that the roll-ups do not count yet, each once, as in the view `event`.
SELECT stored.* REPLACE (coalesce(stored.event_id, stored.writer || '/' || stored.seq) AS event_id)
FROM unrolled_stored_event AS stored
ANTI JOIN unrolled_retry AS retry ON stored.writer = retry.writer AND stored.seq = retry.seq
WHERE stored.at_us BETWEEN 0 AND 4611686018427387;
