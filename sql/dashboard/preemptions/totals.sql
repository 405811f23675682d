-- Preemptions in [from_ns, to_ns) by action, and how fast rollouts gave way: whole (`bin` is NULL), and in bins of a
-- quarter of a power of ten. The reaction of a yield is from serving's wish for the device until the rollout was off
-- it, the longest of a lease and second; of a cut, until the memory was free; of a revocation, the same as of a yield
-- where it was recorded, else until the lease was closed in the ledger. `measured` rows have one, of those `recorded`.
-- What some did not record is NULL. Percentiles are measured values, milliseconds.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH taken AS (
    SELECT
        p.action, p.duration_ns, p.requests, p.tokens_kept, p.tokens_lost, coalesce(p.count, 1) AS times,
        coalesce(p.latency_ns, CASE p.action
            WHEN 'cut' THEN p.duration_ns
            WHEN 'revoke' THEN 1000 * (epoch_us(l.closed_at) - epoch_us(p.event_time))
        END) AS reaction_ns
    FROM preemption AS p
    LEFT JOIN lease AS l USING (run_id, provenance, lease_id)
    WHERE getvariable('run_id') IN (p.run_id, p.rl_run_id)
      AND p.event_time >= make_timestamp(getvariable('from_ns') // 1000)
      AND p.event_time < make_timestamp(getvariable('to_ns') // 1000)
),
binned AS (
    -- What took no more than a microsecond is bin 0.
    SELECT
        *,
        CASE WHEN reaction_ns IS NOT NULL
            THEN greatest(0, 1 + floor(4 * log10(greatest(reaction_ns, 1) / 1000)))::INTEGER
        END AS bin
    FROM taken
)
SELECT
    action,
    bin,
    10 ** ((bin - 1) / 4) / 1000 AS from_ms,
    10 ** (bin / 4) / 1000 AS to_ms,
    count(reaction_ns) AS measured,
    count(*) AS recorded,
    CAST(sum(times) AS BIGINT) AS preemptions,
    quantile_disc(reaction_ns, 0.5) / 1e6 AS p50_ms,
    quantile_disc(reaction_ns, 0.99) / 1e6 AS p99_ms,
    max(reaction_ns) / 1e6 AS longest_ms,
    CASE WHEN count(*) = count(duration_ns) THEN sum(duration_ns) / 1e6 END AS waited_ms,
    CASE WHEN count(*) = count(requests) THEN CAST(sum(requests) AS BIGINT) END AS requests,
    CASE WHEN count(*) = count(tokens_kept) THEN CAST(sum(tokens_kept) AS BIGINT) END AS tokens_kept,
    CASE WHEN count(*) = count(tokens_lost) THEN CAST(sum(tokens_lost) AS BIGINT) END AS tokens_lost
FROM binned
GROUP BY GROUPING SETS ((action), (action, bin))
HAVING grouping(bin) = 1 OR bin IS NOT NULL
ORDER BY action, grouping(bin) DESC, bin;
