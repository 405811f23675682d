-- Serving requests that ended in [from_ns, to_ns), and those that missed a promise; one that failed kept none. Read
-- from the ledger's catalog.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
SELECT count(*) AS requests, count_if(NOT coalesce(slo_ok, false)) AS missed
FROM request
WHERE provenance = getvariable('provenance')
  AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
  AND event_time < make_timestamp(getvariable('to_ns') // 1000);
