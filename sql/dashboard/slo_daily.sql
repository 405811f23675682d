-- Serving requests of one provenance by UTC day of [from_ns, to_ns), and how many kept both their latency budgets.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
SELECT day, CAST(sum(requests) AS BIGINT) AS requests, CAST(sum(slo_ok) AS BIGINT) AS kept
FROM daily_request
WHERE provenance = getvariable('provenance')
  AND day >= CAST(make_timestamp(getvariable('from_ns') // 1000) AS DATE)
  AND day <= CAST(make_timestamp((getvariable('to_ns') - 1) // 1000) AS DATE)
GROUP BY day
ORDER BY day;
