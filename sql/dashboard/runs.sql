-- The runs to choose from, newest first: the newest 200 of `runs`, the newest fleet's own, and the one of `run_id`,
-- however old they are. Each has every provenance among its events, the time of its last event, when it or its fleet
-- was last heard of, the seconds after which it expires where that is known, its tags, and whether an answer of it was
-- judged. The trace is the one of the run's fleet. Jobs on the ledger itself are no runs.
-- By hand: SET VARIABLE run_id = '';
WITH seen AS (
    SELECT
        run_id, list_sort(list(DISTINCT provenance)) AS provenances,
        make_timestamp(max(newest_at_us)) AS last_event_at, bool_or(kind = 'verdict') AS judged
    FROM daily_event
    GROUP BY run_id
),
named AS (
    SELECT
        run.* REPLACE (
            owner.trace AS trace,
            owner.trace_keep_share AS trace_keep_share,
            owner.trace_length_scale AS trace_length_scale,
            owner.trace_output_length_scale AS trace_output_length_scale,
            owner.trace_time_scale AS trace_time_scale
        ),
        seen.provenances, seen.judged, seen.last_event_at, greatest(seen.last_event_at, fleet.last_event_at) AS heard_at
    FROM run
    JOIN seen USING (run_id)
    LEFT JOIN seen AS fleet ON fleet.run_id = run.fleet_run_id
    LEFT JOIN run AS owner ON owner.run_id = run.fleet_run_id
    QUALIFY row_number() OVER (PARTITION BY run.run_id ORDER BY run.started_at) = 1
)
SELECT
    run_id, fleet_run_id, name, status, reason, provenances, started_at, ended_at, last_event_at, heard_at,
    judged, trace, trace_keep_share, trace_length_scale, trace_output_length_scale, trace_time_scale,
    CASE WHEN json_valid(config_json) THEN try_cast(config_json ->> '$.expires_s' AS DOUBLE) END AS expires_s,
    CASE WHEN json_valid(tags_json) AND json_type(tags_json) = 'OBJECT' THEN tags_json ELSE '{}' END AS tags_json,
    count(*) OVER () AS runs
FROM named
QUALIFY row_number() OVER (ORDER BY started_at DESC, run_id DESC) <= 200
    OR run_id = getvariable('run_id')
    OR run_id = fleet_run_id
        AND row_number() OVER (PARTITION BY run_id = fleet_run_id ORDER BY started_at DESC, run_id DESC) = 1
ORDER BY started_at DESC, run_id DESC;
