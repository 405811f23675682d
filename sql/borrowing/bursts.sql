-- Figures behind the provision, by UTC day and fifth of serving load (`bin`, 0 to 4), as rows of three kinds:
--   risk: windows below the top fifth that have one right after them, and how many of those after are in the top fifth.
--   burst: bursts and the missed budgets of requests that arrived during them, by the window before and whether leases
--          held at least half of it. A burst is every window in the top fifth from the first after a lower one to the
--          last in a row.
--   lent: leased time, by the window that it lies in; `bin` is NULL where slices cover less than half of it.
-- Reads the table `window_piece`, which `window_pieces` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE horizon_ns = 10_000_000_000;
WITH whole AS (
    SELECT
        device_id, window_no,
        least(4, floor(5 * round(sum(ns * load) / sum(ns), 9)))::INTEGER AS bin,
        2 * coalesce(sum(ns) FILTER (lease_id IS NOT NULL), 0) >= sum(ns) AS lent
    FROM window_piece
    GROUP BY ALL
    HAVING 2 * sum(ns) >= getvariable('horizon_ns')
),
serving_window AS (
    SELECT
        device_id, window_no, bin,
        CASE WHEN lag(window_no) OVER device = window_no - 1 THEN lag(bin) OVER device END AS bin_before,
        CASE WHEN lag(window_no) OVER device = window_no - 1 THEN lag(lent) OVER device END AS lent_before,
        CASE WHEN lead(window_no) OVER device = window_no + 1 THEN lead(bin) OVER device END AS bin_after
    FROM whole
    WINDOW device AS (PARTITION BY device_id ORDER BY window_no)
),
top AS (
    SELECT *, window_no - row_number() OVER (PARTITION BY device_id ORDER BY window_no) AS island
    FROM serving_window
    WHERE bin = 4
),
burst AS (
    SELECT
        device_id,
        min(window_no) * getvariable('horizon_ns') AS t0_ns,
        (max(window_no) + 1) * getvariable('horizon_ns') AS t1_ns,
        arg_min(bin_before, window_no) AS bin,
        arg_min(lent_before, window_no) AS lent
    FROM top
    GROUP BY device_id, island
    -- The first window of a row that follows none has NULL there, and arg_min passes on to the next one, after a 4.
    HAVING arg_min(bin_before, window_no) < 4
),
missed AS (
    SELECT
        b.device_id, b.t0_ns, b.bin, b.lent,
        count_if(r.request_id IS NOT NULL AND NOT coalesce(r.slo_ok, false)) AS misses
    FROM burst AS b
    LEFT JOIN request AS r
        ON r.run_id = getvariable('run_id') AND r.device_id = b.device_id
       AND epoch_us(r.event_time) * 1000 - r.e2e_ns >= b.t0_ns AND epoch_us(r.event_time) * 1000 - r.e2e_ns < b.t1_ns
    GROUP BY ALL
),
counted AS (
    SELECT
        'risk' AS what, window_no * getvariable('horizon_ns') AS t0_ns, bin, 1 AS windows,
        (bin_after = 4)::INTEGER AS bursts
    FROM serving_window
    WHERE bin < 4 AND bin_after IS NOT NULL
    UNION ALL BY NAME
    SELECT 'burst' AS what, t0_ns, bin, lent, 1 AS bursts, misses FROM missed
    UNION ALL BY NAME
    SELECT 'lent' AS what, p.window_no * getvariable('horizon_ns') AS t0_ns, w.bin, p.ns AS lent_ns
    FROM window_piece AS p
    LEFT JOIN whole AS w USING (device_id, window_no)
    WHERE p.lease_id IS NOT NULL
)
SELECT
    what,
    CAST(make_timestamp(t0_ns // 1000) AS DATE) AS day, bin, lent,
    CAST(sum(windows) AS BIGINT) AS windows,
    CAST(sum(bursts) AS BIGINT) AS bursts,
    CAST(sum(misses) AS BIGINT) AS misses,
    CAST(sum(lent_ns) AS BIGINT) AS lent_ns
FROM counted
GROUP BY ALL
ORDER BY ALL;
