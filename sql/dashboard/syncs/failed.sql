-- The newest 200 syncs that did not bring their engine to the version in [from_ns, to_ns), newest first; `failures` is
-- how many there were. `made_good_at` is the engine's next sync that reached it or a newer one of the same RL run;
-- NULL: it is still behind, or gone.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH failed AS (
    SELECT *, count(*) OVER () AS failures
    FROM sync
    WHERE getvariable('run_id') IN (run_id, rl_run_id) AND NOT ok
      AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
      AND event_time < make_timestamp(getvariable('to_ns') // 1000)
    ORDER BY event_time DESC, writer, seq
    LIMIT 200
)
SELECT
    event_time, engine_id, device_id, policy_version, base_version, reason,
    (
        SELECT min(later.event_time)
        FROM sync AS later
        WHERE later.run_id = failed.run_id AND later.provenance = failed.provenance AND later.ok
          AND later.engine_id = failed.engine_id AND later.rl_run_id = failed.rl_run_id
          AND later.policy_version >= failed.policy_version AND later.event_time >= failed.event_time
    ) AS made_good_at,
    source, route, wire_bytes / 1e6 AS wire_mb, total_ns / 1e6 AS total_ms,
    failures
FROM failed
ORDER BY event_time DESC, writer, seq;
