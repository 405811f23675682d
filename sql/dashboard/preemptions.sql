-- Preemptions of a fleet in [from_ns, to_ns) by action, in at most `blocks` bins of a second or more, with how long
-- rollouts waited and what was lost; NULL where some did not record it.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
--          SET VARIABLE blocks = 200;
WITH span AS (
    SELECT
        getvariable('from_ns') // 1000 AS from_us,
        greatest(1000000, (getvariable('to_ns') - getvariable('from_ns')) // 1000 // getvariable('blocks') + 1)
            AS bin_us
)
SELECT
    action,
    make_timestamp(from_us + bin_us * ((epoch_us(event_time) - from_us) // bin_us)) AS t,
    CAST(sum(coalesce(count, 1)) AS BIGINT) AS preemptions,
    CASE WHEN count(*) = count(duration_ns) THEN sum(duration_ns) / 1e6 END AS waited_ms,
    CASE WHEN count(*) = count(tokens_kept) THEN CAST(sum(tokens_kept) AS BIGINT) END AS tokens_kept,
    CASE WHEN count(*) = count(tokens_lost) THEN CAST(sum(tokens_lost) AS BIGINT) END AS tokens_lost
FROM preemption, span
WHERE run_id = getvariable('run_id')
  AND event_time >= make_timestamp(from_us) AND event_time < make_timestamp(getvariable('to_ns') // 1000)
GROUP BY ALL
ORDER BY ALL;
