-- Prompt tokens computed again because a preemption on a serving device had thrown their KV cache away: the uncached
-- prompt of each attempt that follows a preempted one.
-- By hand: SET VARIABLE run_id = '...';
WITH attempt AS (
    SELECT
        prompt_tokens - cached_tokens AS uncached_tokens,
        lag(outcome) OVER attempts AS outcome_before,
        lag(device_id) OVER attempts AS device_before
    FROM turn
    WHERE run_id = getvariable('run_id')
    WINDOW attempts AS (PARTITION BY trajectory_id, turn ORDER BY attempt)
)
SELECT coalesce(sum(uncached_tokens), 0) AS tokens
FROM attempt
WHERE outcome_before = 'preempted'
  AND device_before IN (
      SELECT device_id FROM device WHERE run_id = getvariable('run_id') AND pool = 'serving'
  );
