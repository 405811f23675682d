-- Facts of a run: its state, when it began, UTC nanoseconds since the Unix epoch, serving traffic it saw, and whether
-- any engine of it or of its fleet did without SGLang's compiled kernels. `provenances` has each provenance among its
-- events, with how many carry it: more than one means that no figure may be given. One row, or none for an unknown run.
-- By hand: SET VARIABLE run_id = '...';
SELECT
    run_id, name, status, strftime(ended_at, '%Y-%m-%dT%H:%M:%S.%fZ') AS ended_at, provenance, reason,
    epoch_ns(min(coalesce(started_at, event_time)) OVER ()) AS began_ns,
    trace, trace_keep_share, trace_length_scale, trace_output_length_scale, trace_time_scale,
    EXISTS (
        FROM engine
        WHERE engine.run_id IN (run.run_id, run.fleet_run_id) AND engine.compute_mechanism LIKE 'native-kernels+%'
    ) AS native_kernels,
    (
        SELECT list(format('{} {}', events, provenance) ORDER BY provenance)
        FROM (SELECT provenance, count(*) AS events FROM event WHERE run_id = getvariable('run_id') GROUP BY ALL)
    ) AS provenances
FROM run
WHERE run_id = getvariable('run_id')
ORDER BY started_at
LIMIT 1;
