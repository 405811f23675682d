-- For the infra lead: which process of a run has not written for longest?
--
-- since (TIMESTAMP): only events at or after this time, UTC.
-- until (TIMESTAMP): only events before this time, UTC.
-- run_id (VARCHAR): only this run.
-- status (VARCHAR): only runs with this status, such as running.
--
-- `behind_ns` is how much newer the run's newest event is than the writer's newest event. A process with little to say
-- is behind, too. But if an agent of a running run is behind by more than a few seconds, its device time is lost,
-- unless another device's clock is ahead (`device_time_offset_ns` of the view `clock`). `age_ns` is the time since the
-- newest event, by the clock of this host.
WITH written AS (
    SELECT
        provenance, run_id, writer, count(*) AS events, max(seq) AS newest_seq, max(event.event_time) AS newest_at
    FROM event
    WHERE (getvariable('since') IS NULL OR event.event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR event.event_time < getvariable('until')::TIMESTAMP)
      AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
    GROUP BY ALL
)
SELECT
    written.provenance, written.run_id, run.status AS run_status, written.writer,
    written.events, written.newest_seq, written.newest_at,
    1000 * (max(epoch_us(newest_at)) OVER (PARTITION BY written.run_id, written.provenance) - epoch_us(newest_at))
        AS behind_ns,
    1000 * (epoch_us(now()) - epoch_us(newest_at)) AS age_ns
FROM written
LEFT JOIN run USING (run_id, provenance)
WHERE (getvariable('status') IS NULL OR run.status = getvariable('status'))
ORDER BY behind_ns DESC, written.run_id, written.writer;
