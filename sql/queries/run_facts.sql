-- What a run is: its last state, provenance and trace. One row for each start, end or failure of the run, in order.
-- By hand: SET VARIABLE run_id = '...';
SELECT run_id, name, action, provenance, at, reason, trace, trace_keep_share, trace_length_scale, trace_time_scale
FROM event
WHERE run_id = getvariable('run_id') AND kind = 'run'
ORDER BY at, seq;
