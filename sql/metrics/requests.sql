-- Serving requests, and those that missed a promise, by whether the device was lent when they arrived.
SELECT
    provenance, device_id, CAST(lent AS VARCHAR) AS lent,
    sum(requests) AS requests,
    sum(requests - ttft_ok) AS ttft_misses,
    sum(requests - tpot_ok) AS tpot_misses,
    sum(requests - slo_ok) AS slo_misses
FROM daily_request
GROUP BY ALL
ORDER BY ALL;
