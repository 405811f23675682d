-- The hardware that each unit is of, and its number, that of the first unit which is of it. Where the ledger does not
-- say, it is that of the run's device alone.
CREATE OR REPLACE TABLE hardware AS
WITH recorded AS (
    -- All tenures of a unit are of one hardware.
    SELECT unit, any_value(hardware_id) AS hardware_id
    FROM unit AS u
    JOIN tenure AS t
        ON u.run_id = t.run_id AND u.provenance = t.provenance AND u.device_id = t.device_id
        AND t.joined_ns >= u.since_ns AND t.joined_ns < u.until_ns
    GROUP BY unit
)
SELECT
    u.*,
    coalesce(d.hardware_id, CASE WHEN u.device_id <> '' THEN u.run_id || '/' || u.device_id END) AS hardware_id,
    CASE
        WHEN d.hardware_id IS NULL THEN min(u.unit) OVER (PARTITION BY u.provenance, u.run_id, u.device_id)
        ELSE min(u.unit) OVER (PARTITION BY u.provenance, d.hardware_id)
    END AS hardware
FROM unit AS u
LEFT JOIN recorded AS d USING (unit);
