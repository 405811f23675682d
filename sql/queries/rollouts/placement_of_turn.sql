-- For the RL engineer: why was each attempt at a turn placed where it was, under which lease, and what did serving take
-- back meanwhile?
--
-- since (TIMESTAMP): only turns recorded at or after this time, UTC.
-- until (TIMESTAMP): only turns recorded before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
-- trajectory_id (VARCHAR): only this trajectory.
-- turn (BIGINT): only the turn of this number, from 0.
--
-- One row for each attempt, in order. The worker is the engine, and `writer` is the process that played the trajectory.
-- Attempts are recorded when their turn is over. `began_at` and `ended_at` are computed back from that time by the
-- durations, so they are wrong by at most the time between attempts. `yields` and `yielded_ns` are the engine's waits
-- within the attempt, to the second. `taken_back` is the cut or revocation that ended a preempted attempt.
WITH attempt AS (
    SELECT *, sum(queue_ns + duration_ns) OVER attempts AS spent_ns
    FROM turn
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('trajectory_id') IS NULL OR trajectory_id = getvariable('trajectory_id'))
      AND (getvariable('turn') IS NULL OR turn = getvariable('turn'))
    WINDOW attempts AS (PARTITION BY run_id, provenance, trajectory_id, turn ORDER BY attempt)
),
-- An attempt ended when it was recorded, or earlier if later ones of its turn had to fit in before they were.
timed AS (
    SELECT *, min(epoch_ns(attempt.event_time) - spent_ns) OVER attempts + spent_ns AS ended_ns
    FROM attempt
    WINDOW attempts AS (
        PARTITION BY run_id, provenance, trajectory_id, turn ORDER BY attempt
        ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
    )
),
spans AS (
    SELECT *, ended_ns - duration_ns AS began_ns
    FROM timed
    WHERE (getvariable('since') IS NULL OR timed.event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR timed.event_time < getvariable('until')::TIMESTAMP)
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
),
taken AS (
    SELECT
        spans.writer, spans.seq,
        sum(coalesce(p.count, 1)) FILTER (p.action = 'yield' AND epoch_ns(p.event_time) < ended_ns)::BIGINT AS yields,
        sum(p.duration_ns) FILTER (p.action = 'yield' AND epoch_ns(p.event_time) < ended_ns) AS yielded_ns,
        -- It is recorded when the engine has let go, so a little after the attempts it ended.
        arg_min(p.action || ': ' || p.reason, p.event_time)
            FILTER (p.action <> 'yield' AND outcome = 'preempted') AS taken_back
    FROM spans
    JOIN preemption AS p
        ON p.run_id = spans.fleet_run_id AND p.provenance = spans.provenance AND p.lease_id = spans.lease_id
       AND epoch_ns(p.event_time) + coalesce(p.duration_ns, 0) > began_ns
    GROUP BY ALL
)
SELECT
    spans.provenance, spans.run_id, spans.trajectory_id, spans.turn, spans.attempt, spans.outcome,
    spans.placement,
    CASE spans.placement
        WHEN 'prefix' THEN 'it holds the prefix of the trajectory'
        WHEN 'lease' THEN 'the least loaded with slack, on a borrowed device'
        WHEN 'least_loaded' THEN 'the least loaded with slack, on a dedicated device'
        WHEN 'queue' THEN 'none could take it at first: the first that could'
    END AS why,
    spans.engine_id, spans.device_id, device.pool,
    spans.lease_id, lease.granted_at AS lease_granted_at, lease.closed_by AS lease_closed_by,
    spans.policy_version,
    make_timestamp(began_ns::BIGINT // 1000) AS began_at,
    make_timestamp(ended_ns::BIGINT // 1000) AS ended_at,
    spans.queue_ns, spans.duration_ns,
    spans.prompt_tokens, spans.cached_tokens, spans.output_tokens,
    coalesce(taken.yields, 0) AS yields,
    coalesce(taken.yielded_ns, 0)::BIGINT AS yielded_ns,
    taken.taken_back,
    spans.writer
FROM spans
LEFT JOIN taken USING (writer, seq)
LEFT JOIN device
    ON device.run_id = spans.fleet_run_id AND device.provenance = spans.provenance
   AND device.device_id = spans.device_id
LEFT JOIN lease
    ON lease.run_id = spans.fleet_run_id AND lease.provenance = spans.provenance AND lease.lease_id = spans.lease_id
ORDER BY spans.run_id, spans.provenance, spans.trajectory_id, spans.turn, spans.attempt;
