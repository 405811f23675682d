-- Provisioned time of each device: [t0_ns, t1_ns). A device that has not left counts up to its last slice while the
-- run goes on, and at least up to the run's end once it is over, so that time nobody reported shows as unaccounted.
-- By hand: SET VARIABLE run_id = '...';
WITH run_end AS (
    SELECT max(epoch_us(at)) * 1000 AS ended_ns
    FROM event
    WHERE run_id = getvariable('run_id') AND kind = 'run' AND action IN ('ended', 'failed')
),
last_slice AS (
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
    greatest(d.joined_ns, coalesce(d.left_ns, greatest(s.t1_ns, e.ended_ns), d.joined_ns)) AS t1_ns
FROM device AS d
CROSS JOIN run_end AS e
LEFT JOIN last_slice AS s USING (device_id)
WHERE d.run_id = getvariable('run_id')
ORDER BY d.device_id, d.joined_ns;
