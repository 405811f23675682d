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
