-- Turns that were preempted on one lease, `part`, at most 200 of `turns`, and where each went on: the next attempt at
-- it.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE part = 'a lease';
WITH own AS (
    SELECT *
    FROM turn
    WHERE getvariable('run_id') IN (run_id, fleet_run_id)
)
SELECT
    ended.trajectory_id, ended.turn, ended.output_tokens AS tokens_made,
    later.device_id AS went_on_at, later.placement, later.queue_ns / 1e6 AS waited_ms, later.outcome,
    count(*) OVER () AS turns
FROM own AS ended
LEFT JOIN own AS later
    ON later.run_id = ended.run_id AND later.provenance = ended.provenance
   AND later.trajectory_id = ended.trajectory_id AND later.turn = ended.turn AND later.attempt = ended.attempt + 1
WHERE ended.lease_id = getvariable('part') AND ended.outcome = 'preempted'
ORDER BY ended.trajectory_id, ended.turn, ended.attempt
LIMIT 200;
