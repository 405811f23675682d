-- Provisioned time of each device: [t0_ns, t1_ns). A device that has not left counts up to its last slice while the
-- run goes on, and at least up to the run's end once it is over, so that time nobody reported shows as unaccounted.
-- By hand: SET VARIABLE run_id = '...';
WITH last_slice AS (
    SELECT device_id, max(t1_ns) AS t1_ns
    FROM device_slice
    WHERE run_id = getvariable('run_id')
    GROUP BY device_id
)
SELECT
    d.device_id,
    d.pool,
    d.device_class,
    d.joined_ns AS t0_ns,
    -- greatest() passes over NULL.
    greatest(d.joined_ns, coalesce(d.left_ns, greatest(s.t1_ns, 1000 * epoch_us(r.ended_at)))) AS t1_ns
FROM device AS d
LEFT JOIN run AS r USING (run_id)
LEFT JOIN last_slice AS s USING (device_id)
WHERE d.run_id = getvariable('run_id')
ORDER BY d.device_id;
