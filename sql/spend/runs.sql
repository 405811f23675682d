-- Runs of one provenance that may count in [from_ns, to_ns): that ended in it, or have no end and began before its end.
-- Read from the ledger's catalog. `shared`: RL runs share its fleet, and what it borrowed counts as theirs; `let_go`:
-- some decision of it or of theirs let a device go.
-- `last_event_us`: when its last event was, `heard_us`: that of its fleet if later, UTC microseconds; `expires_s`:
-- after how long it expires, where it says so.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH heard AS (
    SELECT run_id, max(newest_at_us) AS last_event_us
    FROM daily_event
    WHERE provenance = getvariable('provenance')
    GROUP BY run_id
)
SELECT
    run.run_id, name, status, heard.last_event_us, greatest(heard.last_event_us, fleet.last_event_us) AS heard_us,
    CASE WHEN json_valid(config_json) THEN try_cast(config_json ->> '$.expires_s' AS DOUBLE) END AS expires_s,
    CASE WHEN json_valid(tags_json) THEN coalesce(nullif(tags_json ->> '$.team', ''), 'unallocated')
         ELSE 'unallocated' END AS team,
    run.run_id IN (SELECT fleet_run_id FROM run WHERE fleet_run_id <> run_id) AS shared,
    run.run_id IN (
        SELECT r.fleet_run_id FROM scale_down JOIN run AS r USING (run_id, provenance) WHERE decision = 'let_go'
    ) AS let_go
FROM run
JOIN heard USING (run_id)
LEFT JOIN heard AS fleet ON fleet.run_id = run.fleet_run_id
WHERE provenance = getvariable('provenance')
  AND started_at IS NOT NULL
  AND CASE WHEN ended_at IS NULL THEN 1000 * epoch_us(started_at) < getvariable('to_ns')
           ELSE 1000 * epoch_us(ended_at) >= getvariable('from_ns')
               AND 1000 * epoch_us(ended_at) < getvariable('to_ns') END
ORDER BY started_at, run.run_id;
