-- KV memory that rollout engines held on serving devices while nothing was lent, by stretch between price changes. Only
-- a pool of fixed size (`budget`) stays where no lease needs it; `byte_ns` is NULL where an engine did not say how
-- large. Of an RL run that shares a fleet it is what they held in its own time there, but while they were assigned or
-- lent to others. Reads the tables `stretch` and `lease_span`, which `lease_spans` makes, and `own_time` and
-- `other_run_slice`, which `time_on_fleet` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0; SET VARIABLE price_changes = []::BIGINT[];
WITH stay AS (
    SELECT
        device_id, pool, since_ns,
        -- An engine is there until it says that it stopped, or its device is something else.
        lead(joined_ns, 1, 9223372036854775807) OVER device AS until_ns
    FROM tenure WHERE run_id = getvariable('run_id')
    WINDOW device AS (PARTITION BY device_id ORDER BY joined_ns)
),
change AS (
    SELECT
        *, epoch_ns(event_time) AS t0_ns,
        lead(epoch_ns(event_time), 1, getvariable('period_end_ns')) OVER (
            PARTITION BY fleet_run_id, engine_id ORDER BY event_time, writer, seq
        ) AS t1_ns
    FROM engine
    WHERE run_id = getvariable('run_id') AND role = 'rollout' AND action IN ('started', 'stopped', 'died')
),
life AS (
    SELECT
        c.fleet_run_id, c.engine_id, c.device_id, c.kv_bytes,
        -- `greatest` and `least` pass over NULL: the time of a run that shares nothing has no ends.
        greatest(c.t0_ns, s.since_ns, o.from_ns) AS t0_ns, least(c.t1_ns, s.until_ns, o.to_ns) AS t1_ns
    FROM change AS c
    JOIN stay AS s ON s.device_id = c.device_id AND s.since_ns < c.t1_ns AND c.t0_ns < s.until_ns
    LEFT JOIN own_time AS o ON o.run_id = c.fleet_run_id AND o.device_id = c.device_id
    WHERE s.pool = 'serving' AND action = 'started' AND c.t1_ns > c.t0_ns
      AND memory_mechanism LIKE '%budget' AND memory_mechanism NOT LIKE 'leased+%'
),
part AS (
    SELECT
        fleet_run_id, engine_id, device_id, kv_bytes, segment,
        greatest(t0_ns, from_ns) AS t0_ns, least(t1_ns, to_ns) AS t1_ns
    FROM life JOIN stretch ON t0_ns < to_ns AND from_ns < t1_ns
    WHERE t0_ns < t1_ns
),
taken AS (
    SELECT device_id, segment, t0_ns, t1_ns FROM lease_span
    UNION ALL
    SELECT device_id, segment, greatest(t0_ns, from_ns), least(t1_ns, to_ns)
    FROM other_run_slice JOIN stretch ON t0_ns < to_ns AND from_ns < t1_ns
),
leased AS (
    SELECT
        p.fleet_run_id, p.engine_id, p.device_id, p.t0_ns, p.segment,
        sum(least(h.t1_ns, p.t1_ns) - greatest(h.t0_ns, p.t0_ns)) AS ns
    FROM part AS p
    JOIN taken AS h USING (device_id, segment)
    WHERE h.t0_ns < p.t1_ns AND p.t0_ns < h.t1_ns
    GROUP BY ALL
)
SELECT
    p.segment,
    CASE WHEN count(*) = count(p.kv_bytes)
         THEN sum(p.kv_bytes::HUGEINT * greatest(p.t1_ns - p.t0_ns - coalesce(l.ns, 0), 0)) END AS byte_ns
FROM part AS p
LEFT JOIN leased AS l USING (fleet_run_id, engine_id, device_id, t0_ns, segment)
GROUP BY ALL
ORDER BY ALL;
