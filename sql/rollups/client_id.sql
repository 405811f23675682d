-- Event ids that clients chose, each with the record that counts, of the events that the roll-ups do not count yet.
SELECT run_id, kind, event_id, writer, seq
FROM unrolled_stored_event
ANTI JOIN unrolled_retry USING (writer, seq)
WHERE event_id IS NOT NULL AND at_us BETWEEN 0 AND 4611686018427387;
