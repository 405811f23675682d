-- One row for each run: how it began, its status, and the serving traffic under which its latencies were measured.
--
-- fleet_run_id: The run of the last fleet that an RL run shared with others; the run itself if it shared none.
-- started_at: When the run first started, UTC.
-- ended_at: When the run ended or failed, UTC; NULL while it runs.
-- status: `running`, `ended` or `failed`, by its last event.
-- reason: Why the run ended or failed, in words.
CREATE OR REPLACE VIEW run AS
WITH change AS (
    SELECT *, row_number() OVER (PARTITION BY run_id, provenance ORDER BY at_us, writer, seq) AS n
    FROM event
    WHERE kind = 'run' AND reckonable('run')
),
state AS (
    SELECT
        arg_min(writer, n) AS writer, arg_min(seq, n) AS seq, arg_min(event_id, n) AS event_id,
        run_id, provenance, min(event_time) AS event_time,
        min(event_time) FILTER (action = 'started') AS started_at,
        arg_max(event_time, n) AS last_at,
        arg_max(action, n) AS last_action,
        arg_max_null(reason, n) FILTER (action <> 'started') AS reason,
        arg_max(fleet_run_id, n) AS fleet_run_id,
        arg_max(name, n) AS name,
        arg_max(config_json, n) AS config_json,
        arg_max(host_json, n) AS host_json,
        arg_max(tags_json, n) AS tags_json,
        arg_max(trace, n) AS trace,
        arg_max(trace_keep_share, n) AS trace_keep_share,
        arg_max(trace_length_scale, n) AS trace_length_scale,
        arg_max(trace_output_length_scale, n) AS trace_output_length_scale,
        arg_max(trace_time_scale, n) AS trace_time_scale
    FROM change
    GROUP BY run_id, provenance
)
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    name, coalesce(fleet_run_id, run_id) AS fleet_run_id, started_at,
    CASE WHEN last_action <> 'started' THEN last_at END AS ended_at,
    CASE last_action WHEN 'started' THEN 'running' ELSE last_action END AS status,
    CASE WHEN last_action <> 'started' THEN reason END AS reason,
    trace, trace_keep_share, trace_length_scale, trace_output_length_scale, trace_time_scale,
    config_json, host_json, tags_json
FROM state;
