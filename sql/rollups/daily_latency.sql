-- Amounts that each event adds to daily_latency. A bin is a sixteenth of an octave: 4.4% wide.
WITH measured AS (
    SELECT
        CAST(CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS DATE) AS day,
        run_id, provenance, lease_id IS NOT NULL AS lent,
        coalesce(requests, 1) AS requests,  -- a row of a sample stands for several
        unnest(['ttft', 'tpot', 'e2e']) AS metric,
        unnest([ttft_ns, tpot_mean_ns, e2e_ns]) AS ns
    FROM unrolled_event
    WHERE kind = 'request' AND reckonable('request')
)
SELECT
    day, run_id, provenance, lent, metric,
    CASE WHEN ns > 0 THEN CAST(floor(16 * log2(ns)) AS BIGINT) ELSE -1 END AS bin,
    requests
FROM measured
WHERE ns IS NOT NULL;
