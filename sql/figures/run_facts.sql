-- What a run is: its state and the serving traffic it saw. One row, or more if its events differ in provenance.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    run_id, name, status, provenance, reason,
    trace, trace_keep_share, trace_length_scale, trace_output_length_scale, trace_time_scale
FROM run
WHERE run_id = getvariable('run_id')
ORDER BY started_at;
