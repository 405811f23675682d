-- Every charge of the period, the row of `units` that has its device, and `place`, by which charges are in an order of
-- their own: by hour, run, device, lease ...
WITH asked AS (
    FROM charge
    WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
),
bounds AS (
    SELECT min(hour) AS first_hour, max(place) + 1 AS places FROM asked
),
named AS (
    SELECT unit, row_number() OVER (ORDER BY rank) - 1 AS unit_row, count(*) OVER () AS units FROM stay WHERE stay.asked
)
SELECT
    c.* EXCLUDE (unit, hour, place), make_timestamp(hour * 3600000000) AS hour, unit_row,
    (((hour - first_hour) * units + unit_row) * places + place)::BIGINT AS place
FROM asked AS c
JOIN named USING (unit)
CROSS JOIN bounds;
