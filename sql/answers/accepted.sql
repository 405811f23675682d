-- Judged and accepted trajectories over the steps, or (`part` is `version`) over the policy versions that began them,
-- in at most `blocks` stretches; `groups` of them, and sums over the groups of accepted * accepted, accepted * judged
-- and judged * judged, of which an interval is made. Stale trajectories are neither.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE part = 'step'; SET VARIABLE blocks = 200;
WITH judged AS (
    SELECT
        trajectory_id,
        arg_max(group_id, (event_time, writer, seq)) AS group_id,
        arg_max(step, (event_time, writer, seq)) AS step,
        arg_max(policy_version, (event_time, writer, seq)) AS policy_version,
        arg_max(accepted, (event_time, writer, seq)) AS accepted,
        arg_max(stale, (event_time, writer, seq)) AS stale
    FROM verdict WHERE run_id = getvariable('run_id') GROUP BY trajectory_id
),
ended AS (
    SELECT trajectory_id, arg_max(policy_version, (event_time, writer, seq)) AS policy_version
    FROM trajectory WHERE run_id = getvariable('run_id') AND getvariable('part') = 'version' GROUP BY trajectory_id
),
placed AS (
    SELECT
        group_id, accepted,
        CASE getvariable('part')
            WHEN 'version' THEN coalesce(ended.policy_version, judged.policy_version) ELSE step
        END AS place
    FROM judged
    LEFT JOIN ended USING (trajectory_id)
    WHERE NOT stale
),
span AS (
    SELECT
        min(place) AS begins,
        greatest(1, ceil((max(place) - min(place) + 1) / getvariable('blocks')))::BIGINT AS width
    FROM placed
),
grouped AS (
    SELECT
        (place - begins) // width AS block, group_id, min(place) AS first, max(place) AS last,
        count(*) AS judged, count_if(accepted) AS accepted
    FROM placed, span
    WHERE place IS NOT NULL
    GROUP BY ALL
)
SELECT
    min(first) AS first,
    max(last) AS last,
    CAST(sum(judged) AS BIGINT) AS judged,
    CAST(sum(accepted) AS BIGINT) AS accepted,
    count(*) AS groups,
    CAST(sum(accepted * accepted) AS BIGINT) AS yy,
    CAST(sum(accepted * judged) AS BIGINT) AS yx,
    CAST(sum(judged * judged) AS BIGINT) AS xx
FROM grouped
GROUP BY block
ORDER BY first;
