-- Metered energy and time of serving devices, by class, device and whether leases were withheld at random: true once
-- the wash-out of such a window is over, false in all other time that was drawn. The row with NULL has all readings,
-- drawn or not. `energy_mw_ns` is milliwatts times nanoseconds, `leased_mw_ns` and `leased_ns` are read under a lease.
-- For an interval: energy (y, milliwatt-seconds) and time (x, seconds), how many windows there are, and sums over them
-- of squares and products. A reading is spread evenly over its time. Reads the tables `lease_span`, which `lease_spans`
-- makes, and `holdout_piece`, which `holdout_windows` makes.
-- By hand: SET VARIABLE run_id = '...';
WITH reading AS (
    SELECT
        p.device_id, d.device_class, p.t0_ns, p.t1_ns, p.power_mw::HUGEINT AS power_mw,
        coalesce(sum(p.power_mw::HUGEINT * (p.t1_ns - p.t0_ns)) OVER earlier, 0) AS earlier_mw_ns,
        coalesce(sum(p.t1_ns - p.t0_ns) OVER earlier, 0) AS earlier_ns
    FROM power AS p
    JOIN tenure AS d
        ON d.run_id = p.run_id AND d.device_id = p.device_id
       AND d.joined_ns <= p.t0_ns AND p.t1_ns <= coalesce(d.left_ns, p.t1_ns)
    WHERE p.run_id = getvariable('run_id') AND d.pool = 'serving' AND p.t1_ns > p.t0_ns
      AND p.power_mw IS NOT NULL
    WINDOW earlier AS (
        PARTITION BY p.device_id, d.device_class ORDER BY p.t0_ns, p.writer, p.seq
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
phase AS (
    SELECT
        device_id, number, false AS withheld, t0_ns,
        CASE WHEN p.withheld THEN least(clean_ns, p.t1_ns) ELSE p.t1_ns END AS t1_ns
    FROM holdout_piece AS p
    UNION ALL
    SELECT device_id, number, true, clean_ns, t1_ns FROM holdout_piece WHERE withheld
    UNION ALL
    SELECT device_id, NULL, NULL, min(t0_ns), max(t1_ns) FROM reading GROUP BY device_id
),
span AS (
    SELECT *, false AS leased FROM phase WHERE t0_ns < t1_ns
    UNION ALL
    SELECT p.device_id, number, withheld, greatest(p.t0_ns, x.t0_ns), least(p.t1_ns, x.t1_ns), true
    FROM phase AS p
    JOIN lease_span AS x ON x.device_id = p.device_id AND x.t0_ns < p.t1_ns AND p.t0_ns < x.t1_ns
),
edge AS (
    SELECT
        s.device_id, c.device_class, number, withheld, leased,
        unnest([t0_ns, t1_ns]) AS at_ns, unnest([-1, 1]) AS sign
    FROM span AS s
    JOIN (SELECT DISTINCT device_id, device_class FROM reading) AS c USING (device_id)
),
-- Energy read up to an edge: all earlier readings, and the part of one that it cuts.
read_window AS (
    SELECT
        e.device_class, e.device_id, withheld, number,
        sum(sign * (r.earlier_mw_ns + r.power_mw * least(at_ns - r.t0_ns, r.t1_ns - r.t0_ns))) FILTER (NOT leased)
            AS energy_mw_ns,
        sum(sign * (r.earlier_ns + least(at_ns - r.t0_ns, r.t1_ns - r.t0_ns))) FILTER (NOT leased) AS duration_ns,
        coalesce(sum(sign * (r.earlier_mw_ns + r.power_mw * least(at_ns - r.t0_ns, r.t1_ns - r.t0_ns)))
            FILTER (leased), 0) AS leased_mw_ns,
        coalesce(sum(sign * (r.earlier_ns + least(at_ns - r.t0_ns, r.t1_ns - r.t0_ns))) FILTER (leased), 0)
            AS leased_ns,
        energy_mw_ns / 1e9 AS y,
        duration_ns / 1e9 AS x
    FROM edge AS e
    ASOF JOIN reading AS r
        ON r.device_id = e.device_id AND r.device_class = e.device_class AND e.at_ns >= r.t0_ns
    GROUP BY ALL
)
SELECT
    device_class, device_id, withheld,
    sum(energy_mw_ns) AS energy_mw_ns, sum(duration_ns)::BIGINT AS duration_ns,
    sum(leased_mw_ns) AS leased_mw_ns, sum(leased_ns)::BIGINT AS leased_ns,
    count(*) AS clusters, sum(x) AS x, sum(y) AS y, NULL AS squares,
    sum(y * y) AS yy, sum(y * x) AS yx, sum(x * x) AS xx
FROM read_window
WHERE duration_ns > 0
GROUP BY ALL
ORDER BY ALL;
