-- Sums of charges as a reader may ask for them, each dimension by its name; what has no value in one is "unallocated".
-- `part` has the sums, `hour` the hours of the period in the reader's calendar, `run_tag` the value of one tag of each
-- run, `device_tag` that of each device, which holds where its run has none.
CREATE OR REPLACE TEMP VIEW cost AS
SELECT
    coalesce(p.team, 'unallocated') AS team,
    coalesce(p.run_id, 'unallocated') AS run,
    coalesce(p.device_class, 'unallocated') AS "device-class",
    coalesce(p.pool, 'unallocated') AS pool,
    coalesce(p.device_id, 'unallocated') AS device,
    coalesce(p.hardware_id, 'unallocated') AS hardware,
    coalesce(p.bucket, 'unallocated') AS bucket,
    coalesce(p.task, 'unallocated') AS task,
    coalesce(p.policy_version::VARCHAR, 'unallocated') AS version,
    coalesce(t.tag, d.tag, 'unallocated') AS tag,
    h."day", h.week, h."month", h.quarter, h."year",
    p.state, p.ns, p.tokens, p.cost_nano
FROM part AS p
JOIN hour AS h ON p.hour = h.hour
LEFT JOIN run_tag AS t ON p.run_id = t.run_id
LEFT JOIN device_tag AS d
    ON p.device_id IS NOT DISTINCT FROM d.device_id AND p.hardware_id IS NOT DISTINCT FROM d.hardware_id
    AND p.pool IS NOT DISTINCT FROM d.pool AND p.device_class IS NOT DISTINCT FROM d.device_class;
