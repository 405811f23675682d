-- For the RL engineer: how old were the oldest tokens of the trajectories when they ended, and how many did the trainer
-- drop?
--
-- since (TIMESTAMP): only trajectories that ended at or after this time, UTC.
-- until (TIMESTAMP): only trajectories that ended before this time, UTC.
-- run_id (VARCHAR): only this run.
--
-- `staleness` is the trainer's version minus the oldest version that made one of the tokens. `dropped` counts those
-- whose last verdict is stale: for age, or to keep the batch in shape. `share` is a share of the run's trajectories.
WITH judged AS (
    SELECT run_id, provenance, trajectory_id, arg_max(stale, (verdict.event_time, writer, seq)) AS stale
    FROM verdict
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
    GROUP BY ALL
)
SELECT
    ended.provenance, ended.run_id, ended.staleness,
    count(*) AS trajectories,
    count(*) / sum(count(*)) OVER (PARTITION BY ended.run_id, ended.provenance) AS share,
    count(*) FILTER (judged.stale) AS dropped,
    sum(ended.output_tokens)::BIGINT AS output_tokens
FROM trajectory AS ended
LEFT JOIN judged USING (run_id, provenance, trajectory_id)
WHERE (getvariable('since') IS NULL OR ended.event_time >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR ended.event_time < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR ended.run_id = getvariable('run_id'))
GROUP BY ended.provenance, ended.run_id, ended.staleness
ORDER BY ended.run_id, ended.provenance, ended.staleness;
