-- Events by UTC day and kind: how the ledger grows.
--
-- day: The UTC day of the events.
-- events: Number of events.
-- newest_at_us: When the newest of the events happened, UTC microseconds since the Unix epoch.
CREATE OR REPLACE VIEW daily_event AS
SELECT
    day, run_id, provenance, writer, kind,
    CAST(if(sum(events) > 9223372036854775807, 9223372036854775807, sum(events)) AS BIGINT) AS events,
    max(newest_at_us) AS newest_at_us
FROM (FROM rolled_daily_event UNION ALL BY NAME FROM unrolled_daily_event)
GROUP BY ALL;
