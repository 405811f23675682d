-- Price books that runs name in their fleet files, with the SHA-256 that the file had when the run began: of the run
-- `run_id` and of the fleet that it shares, or of every run of a provenance that had a device in [from_ns, to_ns), NULL
-- where it names none. A device that never left was there until the last event of its run. A variable that is NULL
-- limits nothing.
WITH newest AS (
    SELECT run_id, provenance, 1000 * max(newest_at_us) AS last_ns FROM daily_event GROUP BY run_id, provenance
),
held AS (
    SELECT DISTINCT run_id, provenance
    FROM tenure
    JOIN newest USING (run_id, provenance)
    WHERE joined_ns < coalesce(getvariable('to_ns'), 9223372036854775807)
      AND coalesce(left_ns - 1, last_ns) >= greatest(joined_ns, coalesce(getvariable('from_ns'), 0))
),
named AS (
    SELECT
        run_id, provenance, started_at,
        CASE WHEN json_valid(config_json) THEN json_extract_string(config_json, '$.price_book') END AS price_book,
        CASE WHEN json_valid(config_json) THEN json_extract_string(config_json, '$.price_book_sha256') END AS sha256
    FROM run
)
SELECT run_id, price_book, sha256
FROM named
LEFT JOIN held USING (run_id, provenance)
WHERE (getvariable('provenance') IS NULL OR named.provenance = getvariable('provenance'))
  AND CASE WHEN getvariable('run_id') IS NULL THEN held.run_id IS NOT NULL
           ELSE run_id IN (SELECT unnest([run_id, fleet_run_id]) FROM run WHERE run_id = getvariable('run_id')) END
ORDER BY started_at, run_id;
