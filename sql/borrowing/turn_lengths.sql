-- Completed turns of rollouts by where they ran: how many, and sums of their nanoseconds and of the squares of these.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    CASE p.pool WHEN 'serving' THEN 'borrowed' ELSE 'dedicated' END AS placement,
    count(*) AS turns,
    CAST(sum(t.duration_ns) AS BIGINT) AS ns,
    sum(CAST(t.duration_ns AS HUGEINT) * t.duration_ns) AS squared_ns
FROM turn AS t
ASOF JOIN (SELECT device_id, pool, since_ns FROM tenure WHERE run_id = getvariable('run_id')) AS p
    ON t.device_id = p.device_id AND epoch_us(t.event_time) * 1000 >= p.since_ns
WHERE t.run_id = getvariable('run_id') AND t.outcome = 'completed'
GROUP BY ALL
ORDER BY ALL;
