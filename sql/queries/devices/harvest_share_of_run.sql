-- For the infra lead: which share of the time that serving left unused did a run's rollouts harvest, in all, during its
-- RL steps, and while rollouts were played?
--
-- since (TIMESTAMP): only slices that begin at or after this time, UTC.
-- until (TIMESTAMP): only slices that begin before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- Serving devices only, one row for each run and `period`. The period `run` is all device time, with start-up and
-- shutdown; for an RL run that shares a fleet, it is from the run's first slice to its last. `steps` is from the begin
-- of the first step to the end of the last. `rollouts` is the time in which at least one step was in its rollout phase.
-- `harvested_share` is rollout time divided by rollout + headroom + idle; an RL run that shares a fleet has its own
-- rollout time divided by the sum of all runs. `harvest_of_unused` is rollout time divided by the time that serving
-- alone would have left, as in `harvest_share_by_day`. A slice counts by the part of it that lies in the period.
-- Unfinished steps are left out: a run without a finished step has only the period `run`.
WITH done AS (
    SELECT
        -- Steps of an RL run are those of the fleet that it is on: the devices' time is the fleet's.
        coalesce(run.fleet_run_id, step.run_id) AS run_id, provenance,
        epoch_ns(step.event_time) - total_ns AS t0_ns, epoch_ns(step.event_time) - total_ns + rollout_ns AS played_ns,
        epoch_ns(step.event_time) AS t1_ns
    FROM step
    LEFT JOIN run USING (run_id, provenance)
    WHERE getvariable('run_id') IS NULL OR coalesce(run.fleet_run_id, step.run_id) = getvariable('run_id')
),
-- Rollout phases overlap: a phase that begins before all earlier phases end continues them.
followed AS (
    SELECT
        *,
        max(played_ns) OVER (
            PARTITION BY run_id, provenance ORDER BY t0_ns, played_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM done
),
numbered AS (
    SELECT
        *,
        count(*) FILTER (before_ns IS NULL OR before_ns < t0_ns) OVER (
            PARTITION BY run_id, provenance ORDER BY t0_ns, played_ns ROWS UNBOUNDED PRECEDING
        ) AS stretch
    FROM followed
),
periods AS (
    SELECT DISTINCT run_id, provenance, 'run' AS period, 0 AS t0_ns, 9223372036854775807 AS t1_ns
    FROM device_slice
    WHERE getvariable('run_id') IS NULL OR run_id = getvariable('run_id')
    UNION ALL
    SELECT rollout_run_id, provenance, 'run', min(t0_ns), max(t1_ns)
    FROM device_slice
    WHERE rollout_run_id <> run_id AND (getvariable('run_id') IS NULL OR rollout_run_id = getvariable('run_id'))
    GROUP BY ALL
    UNION ALL
    SELECT run_id, provenance, 'steps', min(t0_ns), max(t1_ns) FROM done GROUP BY ALL
    UNION ALL
    SELECT run_id, provenance, 'rollouts', min(t0_ns), max(played_ns) FROM numbered GROUP BY run_id, provenance, stretch
),
parts AS (
    SELECT
        periods.run_id, slice.provenance, period, slice.headroom_ns, slice.idle_ns, slice.ns, slice.serving_ns,
        coalesce(slice.delayed_ns - slice.beside_work_ns, 0) AS delayed_beyond_work_ns,
        CASE WHEN periods.run_id IN (slice.run_id, slice.rollout_run_id) THEN slice.rollout_ns ELSE 0 END AS rollout_ns,
        slice.rollout_ns + slice.headroom_ns + slice.idle_ns AS unused_ns,
        (least(slice.t1_ns, periods.t1_ns) - greatest(slice.t0_ns, periods.t0_ns)) / slice.ns AS inside
    FROM device_slice AS slice
    JOIN device USING (run_id, provenance, device_id)
    JOIN run ON device.run_id = run.fleet_run_id AND device.provenance = run.provenance
    JOIN periods
        ON run.run_id = periods.run_id AND slice.provenance = periods.provenance
        AND slice.t0_ns < periods.t1_ns AND slice.t1_ns > periods.t0_ns
    WHERE device.pool = 'serving'
      AND (getvariable('since') IS NULL OR slice.t0_ns >= epoch_ns(getvariable('since')::TIMESTAMP))
      AND (getvariable('until') IS NULL OR slice.t0_ns < epoch_ns(getvariable('until')::TIMESTAMP))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
)
SELECT
    run_id, provenance, period,
    round(sum(inside * rollout_ns))::BIGINT AS rollout_ns,
    round(sum(inside * headroom_ns))::BIGINT AS headroom_ns,
    round(sum(inside * idle_ns))::BIGINT AS idle_ns,
    round(sum(inside * ns))::BIGINT AS ns,
    sum(inside * rollout_ns) / nullif(sum(inside * unused_ns), 0) AS harvested_share,
    sum(inside * rollout_ns) / nullif(
        sum(inside * unused_ns) + least(sum(inside * delayed_beyond_work_ns), sum(inside * serving_ns)), 0
    ) AS harvest_of_unused
FROM parts
GROUP BY ALL
ORDER BY run_id, provenance, ns DESC, period;
