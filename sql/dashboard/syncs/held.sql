-- From when engines held which version in [from_ns, to_ns): of the 12 that are furthest behind at its end, the last sync
-- that reached a version in each of at most `blocks` bins, and the last before. `line` is the engine, or NULL for the
-- newest version that was published. Its `t` is when that came, at the earliest the begin of the window.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
--          SET VARIABLE blocks = 200;
WITH span AS (
    SELECT
        make_timestamp(getvariable('from_ns') // 1000) AS from_at, make_timestamp(getvariable('to_ns') // 1000) AS to_at,
        greatest(1, (getvariable('to_ns') - getvariable('from_ns')) // 1000 // getvariable('blocks') + 1) AS bin_us
),
reached AS (
    SELECT engine_id AS line, event_time, policy_version
    FROM sync, span
    WHERE getvariable('run_id') IN (run_id, rl_run_id) AND ok AND engine_id IS NOT NULL AND event_time < to_at
),
chosen AS (
    SELECT line
    FROM reached
    GROUP BY line
    ORDER BY arg_max(policy_version, event_time), line
    LIMIT 12
),
published AS (
    SELECT CAST(NULL AS VARCHAR) AS line, event_time, policy_version
    FROM step, span
    WHERE run_id = getvariable('run_id') AND event_time < to_at
)
SELECT
    line,
    greatest(max(event_time), any_value(from_at)) AS t,
    arg_max(policy_version, event_time) AS policy_version
FROM (FROM reached SEMI JOIN chosen USING (line) UNION ALL FROM published), span
GROUP BY line, greatest(-1, (epoch_us(event_time) - epoch_us(from_at)) // bin_us)
ORDER BY line, t;
