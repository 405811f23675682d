-- Histograms of the measured latencies of serving requests, by UTC day and by whether the device was lent. Any
-- percentile can be read from a histogram to within 4.4%. Counts in bins can be added; percentiles cannot be averaged.
--
-- day: The UTC day on which the requests ended.
-- lent: Whether the device was lent when the requests arrived.
-- metric: `ttft` (time to first token), `tpot` (mean time for each further token) or `e2e` (arrival to last token).
-- from_ns: Lower end of the bin, nanoseconds. It is in the bin.
-- until_ns: Upper end of the bin, nanoseconds. It is not in the bin.
-- requests: Requests in the bin.
-- bin: Number of the bin, which begins at 2^(bin/16) ns; -1 is the bin of latencies of 0.
CREATE OR REPLACE VIEW daily_latency AS
SELECT
    day, run_id, provenance, lent, metric,
    bin,
    CASE WHEN bin < 0 THEN 0 ELSE CAST(ceil(2 ^ (bin / 16)) AS BIGINT) END AS from_ns,
    CASE WHEN bin < 0 THEN 1 ELSE CAST(ceil(2 ^ ((bin + 1) / 16)) AS BIGINT) END AS until_ns,
    CAST(if(sum(requests) > 9223372036854775807, 9223372036854775807, sum(requests)) AS BIGINT) AS requests
FROM (FROM rolled_daily_latency UNION ALL BY NAME FROM unrolled_daily_latency)
GROUP BY ALL;
