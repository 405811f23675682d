-- Provenances of what the period is priced from.
SELECT DISTINCT provenance FROM stay WHERE t1_ns > t0_ns
UNION
SELECT provenance FROM made
WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
  AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
UNION
SELECT provenance FROM sent
WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
  AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
ORDER BY provenance;
