-- Hours of devices in the period without charges that stand: `todo`. What the device was provisioned of an hour is in
-- `device_hour`; tokens and syncs may be of others.
CREATE OR REPLACE TEMP TABLE device_hour AS
WITH spread AS (
    SELECT *, unnest(range(t0_ns // 3600000000000, (t1_ns - 1) // 3600000000000 + 1)) AS hour
    FROM stay
    WHERE t1_ns > t0_ns
)
SELECT
    unit, pool, device_class, hour, hour // 24 AS day,
    least(t1_ns, (hour + 1) * 3600000000000) - greatest(t0_ns, hour * 3600000000000) AS ns
FROM spread
ANTI JOIN priced USING (unit, hour);
CREATE OR REPLACE TEMP TABLE todo AS
SELECT unit, hour FROM device_hour
UNION
(
    SELECT unit, hour
    FROM (SELECT unit, hour FROM made UNION SELECT unit, hour FROM sent)
    SEMI JOIN stay USING (unit)
    WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
    EXCEPT
    FROM priced
);
