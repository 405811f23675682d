-- Who is charged in the period, `payer`: each unit's own run, and then the RL runs that share a unit.
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
