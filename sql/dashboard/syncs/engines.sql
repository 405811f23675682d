-- Which version each engine holds as of `to_ns`, by its last sync that reached one, how far that is behind the newest
-- that was published or reached, and how its syncs in [from_ns, to_ns) went. `gone`: since then it was stopped, died,
-- was detached, or was brought to the weights of another RL run. Furthest behind first.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH own AS (
    SELECT *
    FROM sync
    WHERE getvariable('run_id') IN (run_id, rl_run_id) AND engine_id IS NOT NULL
      AND event_time < make_timestamp(getvariable('to_ns') // 1000)
),
newest AS (
    SELECT rl_run_id, max(policy_version) AS version
    FROM (
        SELECT rl_run_id, policy_version FROM own WHERE ok
        UNION ALL
        SELECT run_id, policy_version FROM step
        WHERE run_id IN (SELECT rl_run_id FROM own) AND event_time < make_timestamp(getvariable('to_ns') // 1000)
    )
    GROUP BY rl_run_id
),
held AS (
    SELECT
        run_id, provenance, engine_id,
        arg_max(device_id, event_time) AS device_id,
        arg_max(rl_run_id, event_time) FILTER (ok) AS rl_run_id,
        arg_max(policy_version, event_time) FILTER (ok) AS policy_version,
        max(event_time) FILTER (ok) AS held_since,
        count(*) FILTER (ok AND event_time >= make_timestamp(getvariable('from_ns') // 1000)) AS reached,
        count(*) FILTER (NOT ok AND event_time >= make_timestamp(getvariable('from_ns') // 1000)) AS failed
    FROM own
    GROUP BY run_id, provenance, engine_id
),
last AS (
    SELECT run_id, provenance, engine_id, arg_max(rl_run_id, event_time) AS last_rl_run_id
    FROM sync
    WHERE ok AND run_id IN (SELECT run_id FROM own) AND event_time < make_timestamp(getvariable('to_ns') // 1000)
    GROUP BY run_id, provenance, engine_id
),
life AS (
    SELECT run_id, provenance, engine_id, arg_max(action, (event_time, seq)) AS last_action, max(event_time) AS last_at
    FROM engine
    WHERE action IN ('started', 'attached', 'stopped', 'died', 'detached')
      AND event_time < make_timestamp(getvariable('to_ns') // 1000)
    GROUP BY run_id, provenance, engine_id
)
SELECT
    engine_id, device_id, held.rl_run_id, policy_version,
    newest.version - policy_version AS behind,
    held_since,
    coalesce(last_action IN ('stopped', 'died', 'detached') AND last_at >= held_since, false)
        OR coalesce(last_rl_run_id <> held.rl_run_id, false) AS gone,
    reached, failed
FROM held
LEFT JOIN newest USING (rl_run_id)
LEFT JOIN last USING (run_id, provenance, engine_id)
LEFT JOIN life USING (run_id, provenance, engine_id)
ORDER BY gone, behind DESC NULLS FIRST, engine_id;
