-- Rollout time and its cost divided by the weights of the tokens made in that hour under that lease, largest remainder
-- first. A generated token weighs what serving asks for one; a prompt token that a preemption made the engine compute
-- again, what serving asks for one of those. Tokens for which there is no time to divide have rows with neither.
CREATE OR REPLACE TEMP TABLE weighed AS
WITH gathered AS (
    SELECT * EXCLUDE (tokens), hour // 24 AS day, sum(tokens) AS tokens
    FROM made
    SEMI JOIN todo USING (run_id, provenance, device_id, hour)
    GROUP BY ALL
    HAVING sum(tokens) <> 0
)
SELECT
    g.* EXCLUDE (output, tokens, day),
    CASE WHEN g.output THEN g.tokens ELSE 0 END AS tokens,
    g.tokens * CASE WHEN g.output THEN p.output_weight ELSE p.input_weight END AS weight
FROM gathered AS g
JOIN tokens_price AS p USING (day);
CREATE OR REPLACE TEMP TABLE rollout_row AS
WITH time AS (
    FROM time_row WHERE bucket = 'rollout'
),
pair AS (
    SELECT
        r.* EXCLUDE (ns, cost_nano), r.ns AS whole_ns, r.cost_nano AS whole_nano,
        m.policy_version, m.task, m.fate, m.cause, m.tokens, m.weight,
        sum(m.weight) OVER place AS whole, count(*) OVER place AS parts
    FROM time AS r
    JOIN weighed AS m
        ON r.run_id = m.run_id AND r.provenance = m.provenance AND r.device_id = m.device_id AND r.hour = m.hour
       AND r.lease_id IS NOT DISTINCT FROM m.lease_id
    WINDOW place AS (PARTITION BY r.run_id, r.provenance, r.device_id, r.hour, r.lease_id)
),
divided AS (
    SELECT
        *,
        CASE WHEN whole > 0 THEN weight ELSE 1 END AS part,
        CASE WHEN whole > 0 THEN whole ELSE parts END AS all_parts
    FROM pair
),
ranked AS (
    SELECT
        *,
        whole_ns * part // all_parts AS floor_ns,
        whole_nano * part // all_parts AS floor_nano,
        row_number() OVER (
            PARTITION BY run_id, provenance, device_id, hour, lease_id
            ORDER BY whole_ns * part % all_parts DESC, policy_version NULLS FIRST, task NULLS FIRST, fate,
                     cause NULLS FIRST
        ) AS ns_place,
        row_number() OVER (
            PARTITION BY run_id, provenance, device_id, hour, lease_id
            ORDER BY whole_nano * part % all_parts DESC, policy_version NULLS FIRST, task NULLS FIRST, fate,
                     cause NULLS FIRST
        ) AS nano_place
    FROM divided
),
placed AS (
    SELECT
        *,
        whole_ns - sum(floor_ns) OVER (PARTITION BY run_id, provenance, device_id, hour, lease_id) AS left_ns,
        whole_nano - sum(floor_nano) OVER (PARTITION BY run_id, provenance, device_id, hour, lease_id) AS left_nano
    FROM ranked
)
SELECT
    run_id, provenance, device_id, pool, device_class, commitment, team, device_team, hour, lease_id, bucket, position,
    writer, first_seq, last_seq, policy_version, task, fate, cause, tokens,
    floor_ns + (ns_place <= left_ns)::INT AS ns,
    floor_nano + (nano_place <= left_nano)::INT AS cost_nano
FROM placed
UNION ALL BY NAME
SELECT * EXCLUDE (ns, cost_nano), 'no tokens' AS fate, 0 AS tokens, ns, cost_nano
FROM time AS r
WHERE NOT EXISTS (
    FROM weighed AS m
    WHERE r.run_id = m.run_id AND r.provenance = m.provenance AND r.device_id = m.device_id AND r.hour = m.hour
      AND r.lease_id IS NOT DISTINCT FROM m.lease_id
)
UNION ALL BY NAME
SELECT
    m.* EXCLUDE (weight), coalesce(s.pool, 'unallocated') AS pool,
    coalesce(s.device_class, 'unallocated') AS device_class, coalesce(s.team, 'unallocated') AS team,
    coalesce(s.device_team, 'unallocated') AS device_team, 'rollout' AS bucket, 1 AS position, 0 AS ns, 0 AS cost_nano
FROM weighed AS m
LEFT JOIN stay AS s USING (run_id, provenance, device_id)
WHERE m.tokens > 0 AND NOT EXISTS (
    FROM time AS r
    WHERE r.run_id = m.run_id AND r.provenance = m.provenance AND r.device_id = m.device_id AND r.hour = m.hour
      AND r.lease_id IS NOT DISTINCT FROM m.lease_id
);
