-- Event ids that clients chose, of the events that the roll-ups do not count yet.
SELECT run_id, kind, event_id
FROM unrolled_event
SEMI JOIN (SELECT writer, seq FROM unrolled_stored_event WHERE event_id IS NOT NULL) AS named USING (writer, seq);
