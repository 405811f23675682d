-- Hours in which others held a device of the runs that are asked for as well: for how long its run held it, `held_ns`,
-- its part of that, `part_ns`, the rollout and the idle time that all holders report of the hour, how long the one
-- worked who worked longest, and for how long any of them held it.
WITH several AS (
    SELECT DISTINCT s.hardware, g.hour
    FROM (FROM given_up WHERE kind = 'held') AS g
    JOIN stay AS s USING (unit)
),
holder AS (
    FROM every_hour SEMI JOIN several USING (hardware, hour)
),
worked AS (
    SELECT
        unit, hour, sum(rollout_ns) AS ns, sum(idle_ns) AS idle_ns,
        sum(serving_ns + rollout_ns + train_ns + sync_ns + activation_ns + headroom_ns) AS busy_ns
    FROM slice
    SEMI JOIN holder USING (unit, hour)
    GROUP BY unit, hour
),
every AS (
    SELECT
        h.hardware, h.hour, sum(coalesce(w.ns, 0)) AS rollout_ns, sum(coalesce(w.idle_ns, 0)) AS idle_ns,
        max(coalesce(w.busy_ns, 0)) AS busy_ns, sum(h.ns) AS hardware_ns
    FROM holder AS h
    LEFT JOIN worked AS w USING (unit, hour)
    GROUP BY h.hardware, h.hour
)
SELECT
    s.run_id AS fleet_run_id, s.device_id, s.hardware_id, h.pool, h.device_class,
    make_timestamp(h.hour * 3600000000) AS hour,
    sum(h.held_ns)::BIGINT AS held_ns, sum(h.ns)::BIGINT AS part_ns,
    any_value(e.rollout_ns)::BIGINT AS rollout_ns, any_value(e.idle_ns)::BIGINT AS idle_ns,
    any_value(e.busy_ns)::BIGINT AS busy_ns, any_value(e.hardware_ns)::BIGINT AS hardware_ns
FROM holder AS h
JOIN stay AS s USING (unit)
JOIN every AS e ON h.hardware = e.hardware AND h.hour = e.hour
WHERE h.asked
GROUP BY s.run_id, s.device_id, s.hardware_id, h.pool, h.device_class, h.hour
HAVING sum(h.ns) > 0;
