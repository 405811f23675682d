-- Latency of serving requests, where it was measured, by UTC day and whether the device was lent, as a histogram of
-- which any percentile can be read to within 4.4%. Percentiles cannot be averaged; counts in bins can be added.
--
-- day: The UTC day they arrived on.
-- lent: Whether the device was lent when they arrived.
-- metric: `ttft` (time to first token), `tpot` (mean time for each further token) or `e2e` (arrival to last token).
-- from_ns: Lower end of the bin, nanoseconds, in it.
-- until_ns: Upper end of the bin, nanoseconds, not in it.
-- requests: Requests in the bin.
-- bin: Number of the bin: the latency is from 2^(bin/16) ns on; -1 for none.
CREATE OR REPLACE VIEW daily_latency AS
SELECT
    day, run_id, provenance, lent, metric,
    bin,
    CASE WHEN bin < 0 THEN 0 ELSE CAST(ceil(2 ^ (bin / 16)) AS BIGINT) END AS from_ns,
    CASE WHEN bin < 0 THEN 1 ELSE CAST(ceil(2 ^ ((bin + 1) / 16)) AS BIGINT) END AS until_ns,
    CAST(if(sum(requests) > 9223372036854775807, 9223372036854775807, sum(requests)) AS BIGINT) AS requests
FROM (FROM rolled_daily_latency UNION ALL BY NAME FROM unrolled_daily_latency)
GROUP BY ALL;
