-- Completed turns of rollouts by where they ran: how many, and sums of their nanoseconds and of the squares of these.
-- By hand: SET VARIABLE run_id = '...';
WITH pool AS (
    SELECT device_id, arg_max(pool, joined_ns) AS pool
    FROM device WHERE run_id = getvariable('run_id') GROUP BY device_id
)
SELECT
    CASE p.pool WHEN 'serving' THEN 'borrowed' ELSE 'dedicated' END AS placement,
    count(*) AS turns,
    CAST(sum(t.duration_ns) AS BIGINT) AS ns,
    sum(CAST(t.duration_ns AS HUGEINT) * t.duration_ns) AS squared_ns
FROM turn AS t
JOIN pool AS p USING (device_id)
WHERE t.run_id = getvariable('run_id') AND t.outcome = 'completed'
GROUP BY ALL
ORDER BY ALL;
