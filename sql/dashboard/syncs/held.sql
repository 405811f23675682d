-- From when engines held which version in [from_ns, to_ns): of the 12 that are furthest behind at its end, the last
-- sync that reached a version in each of at most `blocks` bins, and the last before. `line` is the engine, after its
-- fleet where the run had engines of several, or NULL for the newest version that was published. Its `t` is when that
-- came, at the earliest the begin of the window. The version is NULL from when the engine was brought to the weights of
-- another RL run.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
--          SET VARIABLE blocks = 200;
WITH span AS (
    SELECT
        make_timestamp(getvariable('from_ns') // 1000) AS from_at,
        make_timestamp(getvariable('to_ns') // 1000) AS to_at,
        greatest(1, (getvariable('to_ns') - getvariable('from_ns')) // 1000 // getvariable('blocks') + 1) AS bin_us
),
own AS (
    SELECT DISTINCT run_id, provenance, engine_id
    FROM sync
    WHERE getvariable('run_id') IN (run_id, rl_run_id)
),
reached AS (
    SELECT
        CASE WHEN (SELECT count(DISTINCT run_id) FROM own) > 1 THEN run_id || '/' || engine_id ELSE engine_id END
            AS line,
        event_time,
        CASE WHEN getvariable('run_id') IN (run_id, rl_run_id) THEN policy_version END AS policy_version
    FROM sync
    SEMI JOIN own USING (run_id, provenance, engine_id)
    CROSS JOIN span
    WHERE ok AND event_time < to_at
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
    arg_max_null(policy_version, event_time) AS policy_version
FROM (FROM reached SEMI JOIN chosen USING (line) UNION ALL FROM published), span
GROUP BY line, CASE WHEN event_time >= from_at THEN (epoch_us(event_time) - epoch_us(from_at)) // bin_us ELSE -1 END
ORDER BY line, t;
