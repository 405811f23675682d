-- The macros `fleets_of_run`, `of_fleets` and `own_device_time`, which the dashboard's queries of devices read. Fleets
-- of a run: itself, or of an RL run those that it was on, `run_ids`, the `first` and `last` of them by name, and
-- whether there are `several`. Of fleets: the rows of `source` that are of one of them. Own time: the rows of `slices`,
-- a table of device time, with what of it is the run's; of an RL run that shares a fleet that is no serving and no idle
-- time, and of the rest what was assigned to it. `device` is what the device is called, after its fleet where there are
-- several.
-- By hand: SET VARIABLE run_id = '...';
CREATE OR REPLACE TEMP MACRO fleets_of_run() AS TABLE
SELECT
    list(DISTINCT coalesce(fleet_run_id, run_id)) AS run_ids,
    list_min(run_ids) AS first, list_max(run_ids) AS last, first < last AS several
FROM event
WHERE kind = 'run' AND run_id = getvariable('run_id');
CREATE OR REPLACE TEMP MACRO of_fleets(source) AS TABLE
WITH fleets AS (FROM fleets_of_run())
SELECT *
FROM query_table(source)
-- By the statistics of files, those of other runs are not read.
WHERE run_id BETWEEN (SELECT first FROM fleets) AND (SELECT last FROM fleets)
  AND list_contains((SELECT run_ids FROM fleets), run_id);
CREATE OR REPLACE TEMP MACRO own_device_time(slices) AS TABLE
SELECT
    s.* REPLACE (
        CASE WHEN s.run_id = getvariable('run_id') THEN serving_ns ELSE 0 END AS serving_ns,
        CASE WHEN s.run_id = getvariable('run_id') THEN idle_ns ELSE 0 END AS idle_ns,
        CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN rollout_ns ELSE 0 END AS rollout_ns,
        CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN sync_ns ELSE 0 END AS sync_ns,
        CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN activation_ns ELSE 0 END AS activation_ns,
        CASE WHEN getvariable('run_id') IN (s.run_id, rollout_run_id) THEN headroom_ns ELSE 0 END AS headroom_ns,
        CASE WHEN getvariable('run_id') IN (s.run_id, train_run_id) THEN train_ns ELSE 0 END AS train_ns
    ),
    CASE WHEN (SELECT several FROM fleets_of_run()) THEN s.run_id || '/' || device_id ELSE device_id END AS device
FROM of_fleets(slices) AS s
WHERE getvariable('run_id') IN (s.run_id, s.rollout_run_id, s.train_run_id);
