-- Serving devices cut into windows of `horizon_ns`, counted from the Unix epoch, kept as the table `serving_window`:
-- serving load and its fifth (`bin`, 0 to 4), whether leases held at least half of the window, and the same of the
-- window right before and the bin of the one right after (NULL where there is none). A window that slices cover by less
-- than half is left out. Then, by UTC day and fifth of load below the top one: windows that have one right after them,
-- and how many of those after them are in the top fifth.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE horizon_ns = 10_000_000_000;
CREATE OR REPLACE TEMP TABLE serving_window AS
WITH slice AS (
    SELECT device_id, lease_id, t0_ns, t1_ns, serving_ns / ns AS load
    FROM device_slice AS s
    SEMI JOIN tenure AS t
        ON t.run_id = s.run_id AND t.device_id = s.device_id AND t.pool = 'serving'
       AND t.joined_ns <= s.t0_ns AND s.t0_ns < coalesce(t.left_ns, s.t1_ns)
    WHERE run_id = getvariable('run_id') AND ns > 0
),
piece AS (
    SELECT
        device_id, lease_id, load, window_no,
        least(t1_ns, (window_no + 1) * getvariable('horizon_ns'))
            - greatest(t0_ns, window_no * getvariable('horizon_ns')) AS ns
    FROM slice,
        unnest(range(
            t0_ns // getvariable('horizon_ns'), (t1_ns - 1) // getvariable('horizon_ns') + 1
        )) AS numbers(window_no)
),
whole AS (
    SELECT
        device_id, window_no,
        least(4, floor(5 * round(sum(ns * load) / sum(ns), 9)))::INTEGER AS bin,
        2 * coalesce(sum(ns) FILTER (lease_id IS NOT NULL), 0) >= sum(ns) AS lent
    FROM piece
    GROUP BY ALL
    HAVING 2 * sum(ns) >= getvariable('horizon_ns')
)
SELECT
    device_id, window_no, bin, lent,
    CASE WHEN lag(window_no) OVER device = window_no - 1 THEN lag(bin) OVER device END AS bin_before,
    CASE WHEN lag(window_no) OVER device = window_no - 1 THEN lag(lent) OVER device END AS lent_before,
    CASE WHEN lead(window_no) OVER device = window_no + 1 THEN lead(bin) OVER device END AS bin_after
FROM whole
WINDOW device AS (PARTITION BY device_id ORDER BY window_no);

SELECT
    CAST(make_timestamp(window_no * getvariable('horizon_ns') // 1000) AS DATE) AS day,
    bin,
    count(*) AS windows,
    count_if(bin_after = 4) AS bursts
FROM serving_window
WHERE bin < 4 AND bin_after IS NOT NULL
GROUP BY ALL
ORDER BY ALL;
