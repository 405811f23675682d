-- Records that do not count, since another record has their event_id: the record that the roll-ups count; if they count
-- none with the id, the first one by the writer's place, its name and seq. No sender can choose these, unlike a time.
-- `first_writer` and `first_seq` name the record that counts.
SELECT
    run_id, kind, event_id, stored.writer, stored.seq,
    coalesce(rolled.writer, first_value(stored.writer) OVER same_id) AS first_writer,
    coalesce(rolled.seq, first_value(stored.seq) OVER same_id) AS first_seq
FROM (
    SELECT run_id, kind, event_id, writer, seq, place
    FROM stored_event
    LEFT JOIN writer_order USING (writer)
    WHERE event_id IS NOT NULL AND at_us BETWEEN 0 AND 4611686018427387
) AS stored
LEFT JOIN rolled_client_id AS rolled USING (run_id, kind, event_id)
WINDOW same_id AS (PARTITION BY run_id, kind, event_id ORDER BY place, stored.writer, stored.seq)
QUALIFY stored.writer <> first_writer OR stored.seq <> first_seq;
