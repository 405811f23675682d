-- Runs of one provenance that lie in [from_ns, to_ns), with the fleet that each was on last; a run that has devices to
-- itself is its own fleet. A run lasts to its end, or to its last event. Read from the ledger's catalog.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH heard AS (
    SELECT run_id, max(newest_at_us) AS last_event_us
    FROM daily_event
    WHERE provenance = getvariable('provenance')
    GROUP BY run_id
)
SELECT
    run_id, fleet_run_id,
    CASE WHEN json_valid(tags_json) THEN coalesce(nullif(tags_json ->> '$.team', ''), 'unallocated')
         ELSE 'unallocated' END AS team
FROM run
JOIN heard USING (run_id)
WHERE provenance = getvariable('provenance')
  AND 1000 * epoch_us(started_at) < getvariable('to_ns')
  AND 1000 * coalesce(epoch_us(ended_at), last_event_us) >= getvariable('from_ns')
ORDER BY started_at, run_id;
