-- By UTC day and fifth of serving load below the top one: windows that have one right after them, and how many of those
-- after them are in the top fifth. Reads the table `serving_window`, which `serving_windows` makes.
-- By hand: SET VARIABLE horizon_ns = 10_000_000_000;
SELECT
    CAST(make_timestamp(window_no * getvariable('horizon_ns') // 1000) AS DATE) AS day,
    bin,
    count(*) AS windows,
    count_if(bin_after = 4) AS bursts
FROM serving_window
WHERE bin < 4 AND bin_after IS NOT NULL
GROUP BY ALL
ORDER BY ALL;
