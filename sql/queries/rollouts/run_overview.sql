-- For everyone: what runs are there, how did each go, and what did it do?
--
-- since (TIMESTAMP): only runs started at or after this time, UTC.
-- until (TIMESTAMP): only runs started before this time, UTC.
-- run_id (VARCHAR): only this run.
--
-- One row for each run, newest first. `accepted_share` is a share of the trajectories that were judged and not stale.
-- `slo_share` is a share of the serving requests, under the trace and scales in the same row. Devices and requests are
-- those of the fleet's run, `fleet_run_id`. An RL run that shares a fleet has the leases that were first granted for
-- it, and the preemptions and syncs of engines that were assigned to it.
WITH devices AS (SELECT run_id, provenance, count(*) AS devices FROM device GROUP BY ALL),
leases AS (
    SELECT whose AS run_id, provenance, count(*) AS leases
    FROM lease, unnest(list_distinct([run_id, rl_run_id])) AS runs(whose)
    GROUP BY ALL
),
taken AS (
    SELECT
        whose AS run_id, provenance,
        count(*) FILTER (action <> 'yield') AS preemptions,
        coalesce(sum(coalesce(count, 1)) FILTER (action = 'yield'), 0)::BIGINT AS yields
    FROM preemption, unnest(list_distinct([run_id, rl_run_id])) AS runs(whose)
    GROUP BY ALL
),
synced AS (
    SELECT whose AS run_id, provenance, count(*) AS syncs, count(*) FILTER (NOT ok) AS syncs_failed
    FROM sync, unnest(list_distinct([run_id, rl_run_id])) AS runs(whose)
    GROUP BY ALL
),
stepped AS (
    SELECT run_id, provenance, count(*) AS steps, max(policy_version) AS policy_version
    FROM step
    GROUP BY ALL
),
judged AS (
    SELECT
        run_id, provenance, trajectory_id,
        arg_max(accepted, (verdict.event_time, writer, seq)) AS accepted,
        arg_max(stale, (verdict.event_time, writer, seq)) AS stale
    FROM verdict
    GROUP BY ALL
),
accepted AS (
    SELECT
        run_id, provenance,
        count(*) FILTER (accepted AND NOT stale) AS accepted,
        count(*) FILTER (accepted AND NOT stale) / nullif(count(*) FILTER (NOT stale), 0) AS accepted_share
    FROM judged
    GROUP BY ALL
),
ended AS (
    SELECT run_id, provenance, count(*) AS trajectories, sum(output_tokens)::BIGINT AS output_tokens
    FROM trajectory
    GROUP BY ALL
),
served AS (
    SELECT run_id, provenance, count(*) AS requests, count(*) FILTER (slo_ok) / count(*) AS slo_share
    FROM request
    GROUP BY ALL
)
SELECT
    run.provenance, run.run_id, run.fleet_run_id, run.name, run.status, run.started_at, run.ended_at, run.reason,
    coalesce(devices.devices, 0) AS devices,
    coalesce(leases.leases, 0) AS leases,
    coalesce(taken.preemptions, 0) AS preemptions,
    coalesce(taken.yields, 0) AS yields,
    coalesce(synced.syncs, 0) AS syncs,
    coalesce(synced.syncs_failed, 0) AS syncs_failed,
    coalesce(stepped.steps, 0) AS steps,
    stepped.policy_version,
    coalesce(ended.trajectories, 0) AS trajectories,
    coalesce(accepted.accepted, 0) AS accepted,
    accepted.accepted_share,
    coalesce(ended.output_tokens, 0) AS output_tokens,
    coalesce(served.requests, 0) AS requests,
    served.slo_share,
    run.trace, run.trace_keep_share, run.trace_length_scale, run.trace_output_length_scale, run.trace_time_scale
FROM run
LEFT JOIN devices USING (run_id, provenance)
LEFT JOIN leases USING (run_id, provenance)
LEFT JOIN taken USING (run_id, provenance)
LEFT JOIN synced USING (run_id, provenance)
LEFT JOIN stepped USING (run_id, provenance)
LEFT JOIN ended USING (run_id, provenance)
LEFT JOIN accepted USING (run_id, provenance)
LEFT JOIN served USING (run_id, provenance)
WHERE (getvariable('since') IS NULL OR run.started_at >= getvariable('since')::TIMESTAMP)
  AND (getvariable('until') IS NULL OR run.started_at < getvariable('until')::TIMESTAMP)
  AND (getvariable('run_id') IS NULL OR run.run_id = getvariable('run_id'))
ORDER BY run.started_at DESC, run.run_id, run.provenance;
