-- The hardware that each unit is of, and its number, that of the first unit which is of it. Where the ledger does not say,
-- it is that of the run's device alone.
CREATE OR REPLACE VIEW hardware AS
SELECT
    u.*,
    coalesce(d.hardware_id, CASE WHEN u.device_id <> '' THEN u.run_id || '/' || u.device_id END) AS hardware_id,
    CASE
        WHEN d.hardware_id IS NULL THEN min(u.unit) OVER (PARTITION BY u.provenance, u.run_id, u.device_id)
        ELSE min(u.unit) OVER (PARTITION BY u.provenance, d.hardware_id)
    END AS hardware
FROM unit AS u
LEFT JOIN device AS d USING (run_id, provenance, device_id);
