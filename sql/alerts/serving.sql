-- Serving requests of a provenance that ended in [from_ns, to_ns), and those of them that kept both promises.
SELECT count(*) AS requests, count(*) FILTER (slo_ok) AS kept
FROM request
WHERE provenance = getvariable('provenance')
  AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
  AND event_time < make_timestamp(getvariable('to_ns') // 1000);
