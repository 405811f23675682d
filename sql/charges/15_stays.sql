-- n / d as a whole number, half to even; for n >= 0 and d > 0.
CREATE OR REPLACE TEMP MACRO half_even(n, d) AS (
    n // d + CASE WHEN 2 * (n % d) > d OR (2 * (n % d) = d AND (n // d) % 2 = 1) THEN 1 ELSE 0 END
);

-- When each unit was there, `held`: [t0_ns, t1_ns), none that touch. A device that has not left counts up to its last
-- slice while its run continues, and at least up to the run's end once that is over.
CREATE OR REPLACE TEMP TABLE held AS
WITH last AS (
    SELECT unit, max(t_ns) AS t1_ns FROM edge WHERE kind = 'device_slice' GROUP BY unit
),
there AS (
    SELECT
        u.unit, t.pool, t.device_class, t.joined_ns AS t0_ns,
        -- greatest() passes over NULL.
        greatest(t.joined_ns, coalesce(t.left_ns, greatest(last.t1_ns, 1000 * epoch_us(r.ended_at)))) AS t1_ns
    FROM unit AS u
    JOIN tenure AS t
        ON u.run_id = t.run_id AND u.provenance = t.provenance AND u.device_id = t.device_id
        AND t.joined_ns >= u.since_ns AND t.joined_ns < u.until_ns
    LEFT JOIN run AS r ON u.run_id = r.run_id AND u.provenance = r.provenance
    LEFT JOIN last ON u.unit = last.unit
),
apart AS (
    SELECT *, t0_ns IS DISTINCT FROM lag(t1_ns) OVER (PARTITION BY unit ORDER BY t0_ns, t1_ns) AS begins FROM there
),
numbered AS (
    SELECT *, count(*) FILTER (begins) OVER (PARTITION BY unit ORDER BY t0_ns, t1_ns) AS n FROM apart
)
SELECT
    unit, any_value(pool) AS pool, any_value(device_class) AS device_class, min(t0_ns) AS t0_ns, max(t1_ns) AS t1_ns
FROM numbered
GROUP BY unit, n;
-- Units of the runs that are asked for, or that an RL run that is asked for shares with others, and those of other runs
-- that are of the same hardware. `rank` is their order, and `lot` a number of those that are one price's.
CREATE OR REPLACE TEMP TABLE stay AS
WITH tenant AS (
    SELECT unit FROM slice WHERE rl_run_id = getvariable('run_id')
    UNION
    SELECT unit FROM made WHERE rl_run_id = getvariable('run_id')
    UNION
    SELECT unit FROM sent WHERE rl_run_id = getvariable('run_id')
),
wanted AS (
    SELECT
        *,
        getvariable('run_id') IS NULL OR run_id = getvariable('run_id') OR unit IN (SELECT unit FROM tenant) AS asked
    FROM hardware
),
whole AS (
    SELECT
        w.*, coalesce(h.pool, 'unallocated') AS pool, coalesce(h.device_class, 'unallocated') AS device_class,
        h.unit IS NOT NULL AS joined,
        CASE WHEN h.unit IS NOT NULL AND json_valid(r.tags_json) THEN r.tags_json END AS tags_json
    FROM wanted AS w
    LEFT JOIN (
        SELECT unit, any_value(pool) AS pool, any_value(device_class) AS device_class FROM held GROUP BY unit
    ) AS h USING (unit)
    LEFT JOIN run AS r USING (run_id, provenance)
    WHERE asked OR hardware IN (SELECT hardware FROM wanted WHERE asked)
)
SELECT
    *, NULL::VARCHAR AS tagged_team,
    row_number() OVER (ORDER BY run_id, device_id, since_ns, provenance) AS rank,
    min(unit) OVER (PARTITION BY hardware, pool, device_class) AS lot,
    coalesce(nullif(tags_json ->> '$.team', ''), 'unallocated') AS team,
    CASE WHEN pool = 'serving' THEN coalesce(nullif(tags_json ->> '$.serving_team', ''), 'unallocated')
         ELSE coalesce(nullif(tags_json ->> '$.team', ''), 'unallocated') END AS device_team
FROM whole;
-- The part of each stay within the period.
CREATE OR REPLACE TEMP TABLE in_period AS
SELECT
    unit, greatest(t0_ns, getvariable('from_ns')) AS t0_ns, least(t1_ns, getvariable('to_ns')) AS t1_ns
FROM held
SEMI JOIN stay USING (unit)
WHERE least(t1_ns, getvariable('to_ns')) > greatest(t0_ns, getvariable('from_ns'));
