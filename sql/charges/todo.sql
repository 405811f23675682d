-- Hours of devices in the period without charges that stand: `todo`. What the device was provisioned of an hour is in
-- `device_hour`; tokens and syncs may be of others.
CREATE OR REPLACE TEMP TABLE device_hour AS
WITH spread AS (
    SELECT *, unnest(range(t0_ns // 3600000000000, (t1_ns - 1) // 3600000000000 + 1)) AS hour
    FROM stay
    WHERE t1_ns > t0_ns
)
SELECT
    run_id, provenance, device_id, pool, device_class, team, device_team, hour, hour // 24 AS day,
    least(t1_ns, (hour + 1) * 3600000000000) - greatest(t0_ns, hour * 3600000000000) AS ns
FROM spread
ANTI JOIN priced USING (run_id, provenance, device_id, hour);
CREATE OR REPLACE TEMP TABLE todo AS
SELECT run_id, provenance, device_id, hour FROM device_hour
UNION
(
    SELECT run_id, provenance, device_id, hour
    FROM (SELECT run_id, provenance, device_id, hour FROM made UNION SELECT run_id, provenance, device_id, hour FROM sent)
    WHERE provenance = getvariable('provenance')
      AND hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
      AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
    EXCEPT
    FROM priced
);
