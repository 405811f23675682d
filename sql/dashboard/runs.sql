-- The runs to choose from, newest first: the newest 200 of `runs`, and the one of `run_id`, however old it is. Each has
-- every provenance among its events and the time of its last event. Jobs on the ledger itself are no runs.
-- By hand: SET VARIABLE run_id = '';
WITH seen AS (
    SELECT run_id, list_sort(list(DISTINCT provenance)) AS provenances, make_timestamp(max(newest_at_us)) AS last_event_at
    FROM daily_event
    GROUP BY run_id
),
named AS (
    SELECT run.*, provenances, last_event_at
    FROM run
    JOIN seen USING (run_id)
    QUALIFY row_number() OVER (PARTITION BY run.run_id ORDER BY started_at) = 1
)
SELECT
    run_id, fleet_run_id, name, status, reason, provenances, started_at, ended_at, last_event_at,
    trace, trace_keep_share, trace_length_scale, trace_output_length_scale, trace_time_scale,
    count(*) OVER () AS runs
FROM named
QUALIFY row_number() OVER (ORDER BY started_at DESC, run_id DESC) <= 200 OR run_id = getvariable('run_id')
ORDER BY started_at DESC, run_id DESC;
