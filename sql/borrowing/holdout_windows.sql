-- The windows of a run as they were drawn, kept as the table `holdout_piece`: what is withheld or not is compared from
-- `clean_ns`, when the wash-out is over, to `t1_ns`. Then, in one row: how many there are, how many of them were
-- withheld, how many drawn or treated otherwise than seed, device and number say, in the compared time of how many
-- withheld ones a lease was in force, by which settings they were drawn, and how many of the run's devices other runs
-- borrowed in its time there. Reads the tables `lease_span`, which `lease_spans` makes, and `other_run_slice`, which
-- `time_on_fleet` makes.
-- By hand: SET VARIABLE run_id = '...';
CREATE OR REPLACE TEMP TABLE holdout_piece AS
SELECT
    * REPLACE (
        -- An agent that was started again drew the rest of the window anew.
        least(t1_ns, coalesce(lead(t0_ns) OVER (PARTITION BY device_id ORDER BY t0_ns, writer, seq), t1_ns)) AS t1_ns
    ),
    t0_ns + CASE WHEN coalesce(after_withheld, false) THEN 0 ELSE washout_ns END AS clean_ns
FROM holdout
WHERE run_id = getvariable('run_id');

SELECT
    count(*) AS windows,
    count(*) FILTER (withheld) AS withheld,
    count(*) FILTER (
        withheld <> (draw < holdout_share)
        OR draw <> ('0x' || sha256(holdout_seed || '/' || device_id || '/' || number)[:13])::BIGINT / 16 ** 13
    ) AS drawn_otherwise,
    count(*) FILTER (withheld AND EXISTS (
        -- The ledger knows to the microsecond when a lease was granted.
        SELECT 1
        FROM lease_span AS h
        WHERE h.device_id = p.device_id AND clean_ns < p.t1_ns AND h.t0_ns // 1000 < p.t1_ns // 1000
          AND clean_ns < h.t1_ns
    )) AS lent_windows,
    list_sort(list(DISTINCT format(
        'share {:g}, seed {}, windows of {:g} s, wash-out of {:g} s',
        holdout_share, holdout_seed, window_ns / 1e9, washout_ns / 1e9
    ))) AS settings,
    (SELECT count(DISTINCT device_id) FROM other_run_slice WHERE leased) AS shared_devices
FROM holdout_piece AS p;
