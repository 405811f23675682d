-- For the infra lead: which serving engine took what back from which rollout engine and lease, why, and how busy was
-- serving then?
--
-- since (TIMESTAMP): only preemptions at or after this time, UTC.
-- until (TIMESTAMP): only preemptions before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
-- without (VARCHAR): leaves this action out.
--
-- Newest first. The yields of one second have one row, and `times` is their number. `requests_in_flight` are the
-- device's serving requests that had arrived and were not over, computed from their ends. `serving_share` is serving's
-- share of the slice in which the preemption happened, 0 to 1; NULL without a slice.
WITH taken AS (
    SELECT *
    FROM preemption
    WHERE (getvariable('since') IS NULL OR preemption.event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR preemption.event_time < getvariable('until')::TIMESTAMP)
      AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (run_id, rl_run_id))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
      AND (getvariable('without') IS NULL OR action <> getvariable('without'))
),
served AS (
    SELECT run_id, provenance, device_id, arg_max(engine_id, engine.event_time) AS serving_engine_id
    FROM engine
    WHERE role = 'serving' AND action IN ('started', 'attached')
    GROUP BY ALL
),
-- Requests in flight are the arrivals so far less the ends before: one pass over both.
change AS (
    SELECT
        run_id, provenance, device_id, epoch_ns(request.event_time) - e2e_ns AS t_ns, 1 AS more,
        NULL AS writer, NULL AS seq
    FROM request
    UNION ALL
    SELECT run_id, provenance, device_id, epoch_ns(request.event_time), -1, NULL, NULL
    FROM request
    UNION ALL
    SELECT run_id, provenance, device_id, epoch_ns(taken.event_time), 0, writer, seq
    FROM taken
),
flying AS (
    SELECT writer, seq, sum(more) OVER (PARTITION BY run_id, provenance, device_id ORDER BY t_ns) AS requests
    FROM change
    QUALIFY writer IS NOT NULL
)
SELECT
    taken.event_time, taken.provenance, taken.run_id, taken.device_id,
    served.serving_engine_id, taken.action, taken.engine_id AS rollout_engine_id, taken.lease_id, taken.reason,
    taken.step, coalesce(taken.count, 1) AS times, taken.duration_ns, taken.requests, taken.tokens_lost,
    taken.kv_budget_bytes_before, taken.kv_budget_bytes_after,
    flying.requests::BIGINT AS requests_in_flight,
    CASE WHEN epoch_ns(taken.event_time) < slice.t1_ns THEN slice.serving_ns / nullif(slice.ns, 0) END AS serving_share
FROM taken
ASOF LEFT JOIN device_slice AS slice
    ON taken.run_id = slice.run_id AND taken.provenance = slice.provenance AND taken.device_id = slice.device_id
   AND epoch_ns(taken.event_time) >= slice.t0_ns
LEFT JOIN flying ON flying.writer = taken.writer AND flying.seq = taken.seq
LEFT JOIN served
    ON served.run_id = taken.run_id AND served.provenance = taken.provenance AND served.device_id = taken.device_id
ORDER BY taken.event_time DESC, taken.writer, taken.seq;
