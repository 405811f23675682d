-- Time of hardware that several units hold at once (`held`), or over which they read its power (`power`): each has an
-- equal part, and the nanoseconds that are left go to the first of them. `given_up` is what a unit has less of an hour.
CREATE OR REPLACE TEMP TABLE given_up AS
WITH several AS (
    SELECT hardware FROM stay GROUP BY hardware HAVING count(*) > 1
),
owner AS (
    SELECT unit, hardware, rank FROM stay SEMI JOIN several USING (hardware)
),
read AS (
    SELECT
        unit, t_ns AS t0_ns, lead(t_ns) OVER unit AS t1_ns, sum(delta) OVER unit AS covered
    FROM (
        SELECT unit, t_ns, sum(delta) AS delta
        FROM edge
        SEMI JOIN owner USING (unit)
        WHERE kind = 'power'
        GROUP BY unit, t_ns
    )
    WINDOW unit AS (PARTITION BY unit ORDER BY t_ns)
),
span AS (
    SELECT 'held' AS kind, unit, t0_ns, t1_ns FROM in_period
    UNION ALL
    SELECT
        'power', unit, greatest(t0_ns, getvariable('from_ns')), least(t1_ns, getvariable('to_ns'))
    FROM read
    WHERE covered > 0 AND t1_ns > getvariable('from_ns') AND t0_ns < getvariable('to_ns')
),
owned AS (
    SELECT s.*, o.hardware, o.rank FROM span AS s JOIN owner AS o USING (unit)
),
-- Spans that meet others, directly or through others, are one group: what is compared stays small.
apart AS (
    SELECT
        *,
        t0_ns >= max(t1_ns) OVER (
            PARTITION BY kind, hardware ORDER BY t0_ns, t1_ns, rank ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS begins
    FROM owned
),
grouped AS (
    SELECT
        *, count(*) FILTER (begins) OVER (PARTITION BY kind, hardware ORDER BY t0_ns, t1_ns, rank) AS n
    FROM apart
),
met AS (
    FROM grouped
    SEMI JOIN (
        SELECT kind, hardware, n FROM grouped GROUP BY ALL HAVING count(*) > 1
    ) USING (kind, hardware, n)
),
stretch AS (
    SELECT *, lead(t0_ns) OVER (PARTITION BY kind, hardware, n ORDER BY t0_ns) AS t1_ns
    FROM (SELECT DISTINCT kind, hardware, n, unnest([t0_ns, t1_ns]) AS t0_ns FROM met)
),
holder AS (
    SELECT
        s.kind, s.t0_ns, s.t1_ns, m.unit, count(*) OVER stretch AS units,
        row_number() OVER (PARTITION BY s.kind, s.hardware, s.n, s.t0_ns ORDER BY m.rank) AS place
    FROM stretch AS s
    JOIN met AS m
        ON s.kind = m.kind AND s.hardware = m.hardware AND s.n = m.n AND m.t0_ns <= s.t0_ns AND m.t1_ns >= s.t1_ns
    WINDOW stretch AS (PARTITION BY s.kind, s.hardware, s.n, s.t0_ns)
),
cut AS (
    SELECT
        kind, unit, units, place, hour,
        least(t1_ns, (hour + 1) * 3600000000000) - greatest(t0_ns, hour * 3600000000000) AS ns
    FROM (
        SELECT *, unnest(range(t0_ns // 3600000000000, (t1_ns - 1) // 3600000000000 + 1)) AS hour
        FROM holder
        WHERE units > 1
    )
)
SELECT kind, unit, hour, sum(ns - ns // units - (place <= ns % units)::INT)::BIGINT AS ns
FROM cut
GROUP BY kind, unit, hour;

-- Hours of devices in the period without charges that stand: `todo`. Of the time for which the device was held in an
-- hour, `held_ns`, the run's part is `ns`; both are 0 where there are only tokens or syncs. What one hour of one device
-- costs is rounded once, so it is worked out for all who held it then, `device_hour`.
CREATE OR REPLACE TEMP TABLE every_hour AS
WITH spread AS (
    SELECT *, unnest(range(t0_ns // 3600000000000, (t1_ns - 1) // 3600000000000 + 1)) AS hour
    FROM in_period
),
summed AS (
    SELECT
        unit, hour,
        sum(least(t1_ns, (hour + 1) * 3600000000000) - greatest(t0_ns, hour * 3600000000000))::BIGINT AS held_ns
    FROM spread
    GROUP BY unit, hour
)
SELECT
    unit, s.hardware, s.lot, s.rank, s.pool, s.device_class, s.asked, hour, hour // 24 AS day, held_ns,
    held_ns - coalesce(g.ns, 0) AS ns
FROM summed
JOIN stay AS s USING (unit)
LEFT JOIN (FROM given_up WHERE kind = 'held') AS g USING (unit, hour);
CREATE OR REPLACE TEMP TABLE asked_hour AS
SELECT unit, hour, held_ns, ns, hardware FROM every_hour WHERE asked
UNION ALL
SELECT t.unit, t.hour, 0, 0, s.hardware
FROM (SELECT unit, hour FROM made UNION SELECT unit, hour FROM sent) AS t
JOIN (FROM stay WHERE asked) AS s ON t.unit = s.unit
ANTI JOIN every_hour AS h ON t.unit = h.unit AND t.hour = h.hour
WHERE t.hour >= getvariable('from_ns') // 3600000000000 AND t.hour < getvariable('to_ns') // 3600000000000;
CREATE OR REPLACE TEMP TABLE due AS
FROM asked_hour ANTI JOIN priced USING (unit, hour, held_ns, ns);
CREATE OR REPLACE TEMP TABLE todo AS
SELECT unit, hour, held_ns, ns FROM every_hour SEMI JOIN due USING (hardware, hour)
UNION
SELECT unit, hour, held_ns, ns FROM asked_hour SEMI JOIN due USING (hardware, hour);
-- Units that are one device of one run, in one pool and class, are charged as one, `owner`: a device that was away as
-- something else within the hour, and came back.
CREATE OR REPLACE TEMP TABLE owned AS
SELECT t.unit, t.hour, min(t.unit) OVER (PARTITION BY s.run_id, s.device_id, s.lot, t.hour) AS owner
FROM todo AS t
JOIN stay AS s USING (unit);
CREATE OR REPLACE TEMP TABLE device_hour AS
SELECT
    owner AS unit, hardware, lot, min(rank) AS rank, pool, device_class, hour, day,
    sum(held_ns)::BIGINT AS held_ns, sum(ns)::BIGINT AS ns
FROM every_hour
SEMI JOIN due USING (hardware, hour)
JOIN owned USING (unit, hour)
GROUP BY owner, hardware, lot, pool, device_class, hour, day;
DELETE FROM priced USING todo AS t WHERE priced.unit = t.unit AND priced.hour = t.hour;
DELETE FROM charge USING todo AS t WHERE charge.unit = t.unit AND charge.hour = t.hour;
