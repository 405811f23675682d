-- Metered energy and time of serving devices, by class, by fifth of serving load (0 to 4), lent or not. A reading is
-- lent where leases cover at least half of it, and its load is the serving share of the slices it overlaps.
-- `energy_mw_ns` is milliwatts times nanoseconds. For an interval: energy (y, milliwatt-seconds) and time (x, seconds)
-- summed over each five minutes of a device, and of those sums how many there are and their squares.
-- Reads the table `lease_span`, which `lease_spans` makes.
-- By hand: SET VARIABLE run_id = '...';
WITH reading AS (
    SELECT p.device_id, d.device_class, p.writer, p.seq, p.t0_ns, p.t1_ns, p.power_mw
    FROM power AS p
    JOIN tenure AS d
        ON d.run_id = p.run_id AND d.device_id = p.device_id
       AND d.joined_ns <= p.t0_ns AND p.t1_ns <= coalesce(d.left_ns, p.t1_ns)
    WHERE p.run_id = getvariable('run_id') AND d.pool = 'serving' AND p.t1_ns > p.t0_ns
      AND p.power_mw IS NOT NULL
),
loaded AS (
    SELECT
        r.*,
        sum(s.serving_ns / s.ns * (least(r.t1_ns, s.t1_ns) - greatest(r.t0_ns, s.t0_ns)))
            / sum(least(r.t1_ns, s.t1_ns) - greatest(r.t0_ns, s.t0_ns)) AS serving_share
    FROM reading AS r
    JOIN device_slice AS s
        ON s.run_id = getvariable('run_id') AND s.device_id = r.device_id
       AND s.t0_ns < r.t1_ns AND r.t0_ns < s.t1_ns AND s.ns > 0
    GROUP BY ALL
),
lent AS (
    SELECT
        l.device_class, l.device_id, l.t0_ns, l.t1_ns, l.power_mw,
        least(4, floor(5 * round(l.serving_share, 9)))::INTEGER AS load_bin,
        -- least() and greatest() pass over NULL, so a reading with no lease must be left out here.
        2 * coalesce(sum(least(l.t1_ns, x.t1_ns) - greatest(l.t0_ns, x.t0_ns)) FILTER (x.t0_ns IS NOT NULL), 0)
            >= l.t1_ns - l.t0_ns AS is_lent
    FROM loaded AS l
    LEFT JOIN lease_span AS x ON x.device_id = l.device_id AND x.t0_ns < l.t1_ns AND l.t0_ns < x.t1_ns
    GROUP BY l.device_class, l.device_id, l.writer, l.seq, l.t0_ns, l.t1_ns, l.power_mw, l.serving_share
),
stretch AS (
    SELECT
        device_class, load_bin, is_lent AS lent, device_id, t0_ns // 300_000_000_000 AS stretch,
        sum(power_mw::HUGEINT * (t1_ns - t0_ns)) AS energy_mw_ns,
        sum(t1_ns - t0_ns) AS duration_ns,
        energy_mw_ns / 1e9 AS y,
        duration_ns / 1e9 AS x
    FROM lent
    GROUP BY ALL
)
SELECT
    device_class, load_bin, lent,
    sum(energy_mw_ns) AS energy_mw_ns,
    sum(duration_ns) AS duration_ns,
    count(*) AS clusters,
    sum(y * y) AS yy,
    sum(y * x) AS yx,
    sum(x * x) AS xx
FROM stretch
GROUP BY ALL
ORDER BY ALL;
