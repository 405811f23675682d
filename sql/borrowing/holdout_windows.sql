-- Windows of a run that were drawn, how many of them were withheld, how many drawn or treated otherwise than seed, device
-- and number say, and in the middle of how many withheld ones a lease was in force.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0;
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
        WHERE lease.run_id = getvariable('run_id') AND lease.device_id = holdout.device_id
          AND (holdout.t0_ns + holdout.t1_ns) // 2000 >= epoch_us(lease.granted_at)
          AND (holdout.t0_ns + holdout.t1_ns) // 2 < coalesce(
              epoch_ns(lease.closed_at), least(epoch_ns(lease.expires_at), getvariable('period_end_ns'))
          )
    )) AS lent_windows
FROM holdout
WHERE run_id = getvariable('run_id');
