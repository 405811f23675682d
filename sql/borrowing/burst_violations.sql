-- Bursts, and the missed budgets of requests that arrived during them, by the UTC day of their start, the fifth of load
-- of the window before and whether the device was lent then. A burst is every window in the top fifth from the first
-- after a lower one to the last in a row. Reads the table `serving_window`, which `burst_risk` makes.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE horizon_ns = 10_000_000_000;
WITH top AS (
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
)
SELECT
    CAST(make_timestamp(t0_ns // 1000) AS DATE) AS day, bin, lent,
    count(*) AS bursts,
    CAST(sum(misses) AS BIGINT) AS misses
FROM missed
GROUP BY ALL
ORDER BY ALL;
