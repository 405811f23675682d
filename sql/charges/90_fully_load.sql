-- The charges with idle time and energy spread over the work of the same device, in one pool and class, and day.
WITH numbered AS (
    SELECT
        row_number() OVER () AS number,
        *,
        bucket IN ('idle', 'energy') AS spread,
        CASE WHEN bucket IN ('serving', 'headroom') THEN 'serving'
             WHEN bucket IN ('rollout', 'sync', 'activation', 'transfer') THEN 'rollout'
             WHEN bucket = 'train' THEN 'train'
             WHEN bucket = 'unaccounted' THEN 'unaccounted' END AS work
    FROM charge
),
weighed AS (
    SELECT
        *,
        CASE WHEN kind = 'capacity' AND work <> 'unaccounted' THEN cost_nano ELSE 0 END AS weight
    FROM numbered
),
summed AS (
    SELECT
        *,
        sum(weight) OVER day AS whole,
        coalesce(sum(cost_nano) FILTER (spread) OVER day, 0) AS pot
    FROM weighed
    WINDOW day AS (PARTITION BY fleet_run_id, provenance, device_id, pool, device_class, hour::DATE)
),
floored AS (
    SELECT
        *,
        CASE WHEN whole > 0 THEN pot * weight // whole ELSE 0 END AS floor_nano,
        CASE WHEN whole > 0 THEN pot * weight % whole ELSE 0 END AS remainder
    FROM summed
),
ranked AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY fleet_run_id, provenance, device_id, pool, device_class, hour::DATE
            ORDER BY remainder DESC, number
        ) AS place,
        CASE WHEN whole > 0 THEN pot ELSE 0 END - sum(floor_nano) OVER (
            PARTITION BY fleet_run_id, provenance, device_id, pool, device_class, hour::DATE
        ) AS left_over
    FROM floored
)
SELECT
    * EXCLUDE (number, spread, work, weight, whole, pot, floor_nano, remainder, place, left_over),
    coalesce(work, pool) AS work,
    (cost_nano + floor_nano + (place <= left_over)::INT)::BIGINT AS loaded_nano
FROM ranked
WHERE NOT (spread AND whole > 0)
ORDER BY number;
