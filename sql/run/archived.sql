-- How many events of a run are counted in the daily sums and are no longer in the ledger, if it may have such: if it
-- has events as old as `archived_us`, UTC microseconds. One row.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE archived_us = 0;
WITH counted AS (
    SELECT sum(events) AS events, min(day) AS first
    FROM daily_event
    WHERE run_id = getvariable('run_id')
)
SELECT
    CASE WHEN first <= CAST(make_timestamp(getvariable('archived_us')) AS DATE)
         THEN CAST(events - (SELECT count(*) FROM event WHERE run_id = getvariable('run_id')) AS BIGINT)
         ELSE 0 END AS events
FROM counted;
