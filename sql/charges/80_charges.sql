-- Payers of the period, `payer`: each unit's own run, and then the RL runs that share a unit.
CREATE OR REPLACE TEMP TABLE payer AS
WITH named AS (
    SELECT unit, row_number() OVER (ORDER BY rank) - 1 AS unit_row, rank FROM stay WHERE asked
),
tenant AS (
    SELECT DISTINCT unit, rl_run_id
    FROM charge
    WHERE rl_run_id IS NOT NULL
      AND hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
)
SELECT unit, NULL AS rl_run_id, unit_row, unit_row AS payer_row FROM named
UNION ALL
SELECT
    unit, rl_run_id, unit_row,
    (SELECT count(*) FROM named) + row_number() OVER (ORDER BY rank, rl_run_id) - 1
FROM tenant
JOIN named USING (unit);

-- Every charge of the period, the row of `payer` that says whose it is, and `place`, by which charges are in an order
-- of their own: by hour, run, device, lease ...
WITH asked AS (
    FROM charge
    WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
),
bounds AS (
    SELECT
        min(hour) AS first_hour, max(place) + 1 AS places,
        (SELECT count(*) FROM payer WHERE rl_run_id IS NULL) AS units
    FROM asked
)
SELECT
    c.* EXCLUDE (unit, rl_run_id, hour, place), make_timestamp(hour * 3600000000) AS hour,
    coalesce(t.payer_row, p.payer_row) AS payer_row,
    (((hour - first_hour) * units + p.unit_row) * places + place)::BIGINT AS place
FROM asked AS c
JOIN (FROM payer WHERE rl_run_id IS NULL) AS p USING (unit)
LEFT JOIN (FROM payer WHERE rl_run_id IS NOT NULL) AS t ON c.unit = t.unit AND c.rl_run_id = t.rl_run_id
CROSS JOIN bounds;
