-- The windows of a run as they were drawn, `holdout_piece`. What is withheld or not is compared from `clean_ns`, when
-- the wash-out is over, to `t1_ns`.
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
