-- How evenly rollout tokens are made: time and tokens in equal blocks of the run's time, by where they were made and
-- class of device. `placement` is borrowed (serving devices) or dedicated (rollout and train devices); `ns` is all time
-- of the devices. A slice counts in the block of its middle, a turn in that of its own.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_from_ns = 0; SET VARIABLE period_end_ns = 0;
-- SET VARIABLE blocks = 20;
WITH own AS (
    SELECT
        device_id, device_class, CASE pool WHEN 'serving' THEN 'borrowed' ELSE 'dedicated' END AS placement, since_ns
    FROM tenure WHERE run_id = getvariable('run_id')
),
made AS (
    SELECT device_id, t0_ns + ns // 2 AS middle_ns, rollout_ns, ns, 0 AS tokens
    FROM device_slice WHERE run_id = getvariable('run_id')
    UNION ALL
    SELECT device_id, epoch_us(event_time) * 1000 - duration_ns // 2, 0, 0, output_tokens
    FROM turn WHERE run_id = getvariable('run_id')
)
SELECT
    o.placement, o.device_class,
    greatest(0, least(
        getvariable('blocks') - 1,
        floor(
            (m.middle_ns - getvariable('period_from_ns')) * getvariable('blocks')::DOUBLE
            / greatest(1, getvariable('period_end_ns') - getvariable('period_from_ns'))
        )
    ))::INTEGER AS block,
    CAST(sum(m.rollout_ns) AS BIGINT) AS rollout_ns,
    CAST(sum(m.ns) AS BIGINT) AS ns,
    CAST(sum(m.tokens) AS BIGINT) AS tokens
FROM made AS m
ASOF JOIN own AS o ON m.device_id = o.device_id AND m.middle_ns >= o.since_ns
GROUP BY ALL
ORDER BY ALL;
