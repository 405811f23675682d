-- Tokens generated on one device in [from_ns, to_ns): attempts at turns, with the prompt tokens that a preemption
-- made the engine compute again, and tokens thrown away by preemptions. Read from the ledger's catalog.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE provenance = 'live'; SET VARIABLE device_id = 'serving-0';
-- SET VARIABLE from_ns = 1793491200000000000; SET VARIABLE to_ns = 1793494800000000000;
WITH tenant AS (
    SELECT DISTINCT run_id
    FROM event
    WHERE kind = 'run' AND fleet_run_id = getvariable('run_id') AND run_id <> getvariable('run_id')
      AND reckonable('run')
),
mine AS (
    SELECT *
    FROM event
    -- Turns on a fleet's device are of the RL runs that share it, and so is what became of them.
    WHERE (
        run_id = getvariable('run_id')
        OR run_id IN (FROM tenant) AND (kind = 'trajectory' OR fleet_run_id = getvariable('run_id'))
      )
      AND provenance = getvariable('provenance')
      AND kind IN ('turn', 'preemption', 'trajectory')
),
attempt AS (
    SELECT
        *, lag(outcome) OVER (PARTITION BY run_id, trajectory_id, turn ORDER BY attempt) AS outcome_before
    FROM mine
    WHERE kind = 'turn' AND reckonable('turn')
),
ended AS (
    SELECT
        run_id, trajectory_id, arg_max(task, (at_us, writer, seq)) AS task,
        arg_max(writer, (at_us, writer, seq)) AS ended_writer, arg_max(seq, (at_us, writer, seq)) AS ended_seq
    FROM mine
    WHERE kind = 'trajectory' AND reckonable('trajectory')
    GROUP BY run_id, trajectory_id
)
SELECT
    a.kind, a.writer, a.seq, a.at_us, nullif(a.run_id, getvariable('run_id')) AS rl_run_id, a.lease_id,
    a.policy_version, e.task, e.ended_writer, e.ended_seq,
    a.output_tokens AS tokens,
    CASE WHEN a.attempt > 0 AND a.outcome_before = 'preempted'
         THEN greatest(a.prompt_tokens - a.cached_tokens, 0) ELSE 0 END AS recomputed_tokens
FROM attempt AS a
LEFT JOIN ended AS e USING (run_id, trajectory_id)
WHERE a.device_id = getvariable('device_id')
  AND a.at_us >= getvariable('from_ns') // 1000 AND a.at_us < getvariable('to_ns') // 1000
UNION ALL BY NAME
SELECT
    kind, writer, seq, at_us, nullif(rl_run_id, run_id) AS rl_run_id, lease_id, tokens_lost AS tokens,
    0 AS recomputed_tokens
FROM mine
WHERE kind = 'preemption' AND tokens_lost > 0
  AND reckonable('preemption')
  AND device_id = getvariable('device_id')
  AND at_us >= getvariable('from_ns') // 1000 AND at_us < getvariable('to_ns') // 1000
ORDER BY writer, seq;
