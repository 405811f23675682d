-- Rollout time and its cost divided by the weights of the tokens that its RL run made in that hour under that lease,
-- largest remainder first. A generated token weighs what serving asks for one; a prompt token that a preemption made
-- the engine compute again, what serving asks for one of those. Tokens for which there is no time to divide have rows
-- with neither.
CREATE OR REPLACE TEMP TABLE rollout_time AS
SELECT *, row_number() OVER () AS place FROM time_row WHERE position = 1;
CREATE OR REPLACE TEMP TABLE weighed AS
WITH gathered AS (
    SELECT * EXCLUDE (unit, owner, tokens), owner AS unit, hour // 24 AS day, sum(tokens) AS tokens
    FROM made
    JOIN owned USING (unit, hour)
    GROUP BY ALL
    HAVING sum(tokens) <> 0
)
SELECT
    g.* EXCLUDE (output, tokens, day), r.place,
    CASE WHEN g.output THEN g.tokens ELSE 0 END AS tokens,
    g.tokens * CASE WHEN g.output THEN p.output_weight ELSE p.input_weight END AS weight
FROM gathered AS g
JOIN tokens_price AS p USING (day)
LEFT JOIN rollout_time AS r
    ON g.unit = r.unit AND g.hour = r.hour AND g.lease_id IS NOT DISTINCT FROM r.lease_id
    AND g.rl_run_id IS NOT DISTINCT FROM r.rl_run_id;
CREATE OR REPLACE TEMP TABLE rollout_row AS
WITH whole AS (
    SELECT
        place, any_value(r.ns) AS whole_ns, any_value(r.cost_nano) AS whole_nano, sum(m.weight) AS weight,
        count(*) AS parts
    FROM rollout_time AS r
    JOIN weighed AS m USING (place)
    GROUP BY place
),
divided AS (
    SELECT
        place, policy_version, task, fate, cause, m.tokens, whole_ns, whole_nano,
        CASE WHEN w.weight > 0 THEN m.weight ELSE 1 END AS part,
        CASE WHEN w.weight > 0 THEN w.weight ELSE parts END AS all_parts,
        row_number() OVER (ORDER BY policy_version NULLS FIRST, task NULLS FIRST, fate, cause NULLS FIRST) AS tie
    FROM weighed AS m
    JOIN whole AS w USING (place)
),
-- Windows over everything and not over each place: what DuckDB spends on a partition is more than it sorts in one.
ranked AS (
    SELECT
        place, policy_version, task, fate, cause, tokens, whole_ns, whole_nano,
        whole_ns * part // all_parts AS floor_ns,
        whole_nano * part // all_parts AS floor_nano,
        row_number() OVER (ORDER BY place, whole_ns * part % all_parts DESC, tie) AS ns_rank,
        row_number() OVER (ORDER BY place, whole_nano * part % all_parts DESC, tie) AS nano_rank
    FROM divided
),
left_over AS (
    SELECT
        place, min(ns_rank) + any_value(whole_ns) - sum(floor_ns) AS ns_end,
        min(nano_rank) + any_value(whole_nano) - sum(floor_nano) AS nano_end
    FROM ranked
    GROUP BY place
),
given AS (
    SELECT
        place, policy_version, task, fate, cause, tokens, floor_ns + (ns_rank < ns_end)::INT AS ns,
        floor_nano + (nano_rank < nano_end)::INT AS cost_nano
    FROM ranked
    JOIN left_over USING (place)
)
SELECT r.* EXCLUDE (place, ns, cost_nano), g.* EXCLUDE (place)
FROM given AS g
JOIN rollout_time AS r USING (place)
UNION ALL BY NAME
SELECT * EXCLUDE (place), 'no tokens' AS fate, 0 AS tokens
FROM rollout_time
ANTI JOIN weighed USING (place)
UNION ALL BY NAME
SELECT * EXCLUDE (weight, place), 1 AS position, 0 AS ns, 0 AS cost_nano
FROM weighed
WHERE tokens > 0 AND place IS NULL;
