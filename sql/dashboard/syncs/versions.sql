-- Syncs that ended in [from_ns, to_ns) by the version they were to bring: the newest 200 of `versions`. Phases are
-- means of the syncs that reached it, milliseconds, NULL where one of them does not say. `encode` is the publisher's,
-- spent once for all engines and before `total` begins; `fetch` has the checking of what came in it where `verify` is
-- NULL.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH ended AS (
    SELECT *
    FROM sync
    WHERE getvariable('run_id') IN (run_id, rl_run_id)
      AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
      AND event_time < make_timestamp(getvariable('to_ns') // 1000)
)
SELECT
    rl_run_id,
    policy_version,
    min(event_time) AS first_at,
    count_if(ok) AS reached,
    count_if(NOT ok) AS failed,
    count(DISTINCT (run_id, engine_id)) FILTER (ok AND engine_id IS NOT NULL) AS engines,
    CAST(sum(wire_bytes) AS BIGINT) AS wire_bytes,
    CAST(sum(dense_bytes) FILTER (ok) AS BIGINT) AS dense_bytes,
    CASE WHEN count_if(ok) = count(encode_ns) FILTER (ok) THEN avg(encode_ns) FILTER (ok) / 1e6 END AS encode_ms,
    CASE WHEN count_if(ok) = count(fetch_ns) FILTER (ok) THEN avg(fetch_ns) FILTER (ok) / 1e6 END AS fetch_ms,
    CASE WHEN count_if(ok) = count(verify_ns) FILTER (ok) THEN avg(verify_ns) FILTER (ok) / 1e6 END AS verify_ms,
    CASE WHEN count_if(ok) = count(stage_ns) FILTER (ok) THEN avg(stage_ns) FILTER (ok) / 1e6 END AS stage_ms,
    CASE WHEN count_if(ok) = count(pause_ns) FILTER (ok) THEN avg(pause_ns) FILTER (ok) / 1e6 END AS pause_ms,
    CASE WHEN count_if(ok) = count(acknowledge_ns) FILTER (ok) THEN avg(acknowledge_ns) FILTER (ok) / 1e6 END
        AS acknowledge_ms,
    avg(total_ns) FILTER (ok) / 1e6 AS total_ms,
    count(*) OVER () AS versions
FROM ended
WHERE policy_version IS NOT NULL
GROUP BY rl_run_id, policy_version
ORDER BY first_at DESC, rl_run_id, policy_version DESC
LIMIT 200;
