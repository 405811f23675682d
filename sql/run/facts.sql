-- What a run is: its state, the serving traffic it saw, and whether any engine of it or of its fleet did without
-- SGLang's compiled kernels. One row, or more if its events differ in provenance.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    run_id, name, status, strftime(ended_at, '%Y-%m-%dT%H:%M:%S.%fZ') AS ended_at, provenance, reason,
    trace, trace_keep_share, trace_length_scale, trace_output_length_scale, trace_time_scale,
    EXISTS (
        FROM engine
        WHERE engine.run_id IN (run.run_id, run.fleet_run_id) AND engine.compute_mechanism LIKE 'native-kernels+%'
    ) AS native_kernels
FROM run
WHERE run_id = getvariable('run_id')
ORDER BY started_at;
