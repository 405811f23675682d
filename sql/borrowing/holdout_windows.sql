-- Windows of a run that were drawn, how many of them were withheld, how many drawn or treated otherwise than seed, device
-- and number say, in the compared time of how many withheld ones a lease was in force, and by which settings they were
-- drawn. Time is compared from the end of the wash-out to the end of the window.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0;
WITH drawn AS (
    SELECT
        *,
        t0_ns + CASE WHEN coalesce(after_withheld, false) THEN 0 ELSE washout_ns END AS clean_ns,
        -- An agent that was started again drew the rest of the window anew.
        least(t1_ns, coalesce(lead(t0_ns) OVER (PARTITION BY device_id ORDER BY t0_ns, writer, seq), t1_ns)) AS end_ns
    FROM holdout
    WHERE run_id = getvariable('run_id')
)
SELECT
    count(*) AS windows,
    count(*) FILTER (withheld) AS withheld,
    count(*) FILTER (
        withheld <> (draw < holdout_share)
        OR draw <> ('0x' || sha256(holdout_seed || '/' || device_id || '/' || number)[:13])::BIGINT / 16 ** 13
    ) AS drawn_otherwise,
    count(*) FILTER (withheld AND EXISTS (
        SELECT 1
        FROM lease
        WHERE lease.run_id = getvariable('run_id') AND lease.device_id = drawn.device_id
          AND clean_ns < end_ns AND epoch_us(lease.granted_at) < end_ns // 1000
          AND clean_ns < coalesce(
              epoch_ns(lease.closed_at), least(epoch_ns(lease.expires_at), getvariable('period_end_ns'))
          )
    )) AS lent_windows,
    list_sort(list(DISTINCT format(
        'share {:g}, seed {}, windows of {:g} s, wash-out of {:g} s',
        holdout_share, holdout_seed, window_ns / 1e9, washout_ns / 1e9
    ))) AS settings
FROM drawn;
