-- Each hour's cost, rounded once, half to even, and divided among runs, leases, RL runs and buckets by time, largest
-- remainder first. What no slice reports is the bucket `unaccounted`. `writer` and its seqs are NULL where several
-- reported the same.
CREATE OR REPLACE TEMP TABLE time_row AS
WITH summed AS (
    SELECT
        owner AS unit, hour, lease_id, rl_run_id,
        CASE WHEN min(writer) = max(writer) THEN min(writer) END AS writer,
        CASE WHEN min(writer) = max(writer) THEN min(first_seq) END AS first_seq,
        CASE WHEN min(writer) = max(writer) THEN max(last_seq) END AS last_seq,
        sum(serving_ns) AS serving_ns, sum(rollout_ns) AS rollout_ns, sum(train_ns) AS train_ns,
        sum(sync_ns) AS sync_ns, sum(activation_ns) AS activation_ns, sum(headroom_ns) AS headroom_ns,
        sum(idle_ns) AS idle_ns
    FROM slice
    JOIN owned USING (unit, hour)
    GROUP BY owner, hour, lease_id, rl_run_id
),
bucketed AS (
    SELECT
        unit, hour, lease_id, rl_run_id, writer, first_seq, last_seq,
        unnest(range(7)) AS position,
        unnest([serving_ns, rollout_ns, train_ns, sync_ns, activation_ns, headroom_ns, idle_ns]) AS ns
    FROM summed
),
reported AS (
    SELECT unit, hour, sum(ns) AS ns FROM bucketed GROUP BY ALL
),
part AS (
    FROM bucketed WHERE ns > 0
    UNION ALL BY NAME
    SELECT h.unit, h.hour, 7 AS position, h.held_ns - coalesce(r.ns, 0) AS ns
    FROM device_hour AS h
    LEFT JOIN reported AS r USING (unit, hour)
    WHERE h.held_ns > coalesce(r.ns, 0)
),
-- If the run has only a part of the hour, that part is divided into its buckets.
shared AS (
    SELECT
        p.*, h.ns AS whole_ns, p.ns::HUGEINT * h.ns // h.held_ns AS floor_ns,
        row_number() OVER (
            ORDER BY
                p.unit, p.hour, p.ns::HUGEINT * h.ns % h.held_ns DESC,
                lease_id NULLS FIRST, position, rl_run_id NULLS FIRST
        ) AS place
    FROM part AS p
    JOIN (FROM device_hour WHERE ns <> held_ns) AS h ON p.unit = h.unit AND p.hour = h.hour
),
shared_end AS (
    SELECT unit, hour, min(place) + any_value(whole_ns) - sum(floor_ns) AS place_end
    FROM shared
    GROUP BY unit, hour
),
owned AS (
    FROM part ANTI JOIN shared USING (unit, hour)
    UNION ALL BY NAME
    SELECT * EXCLUDE (ns, whole_ns, floor_ns, place, place_end), (floor_ns + (place < place_end)::INT)::BIGINT AS ns
    FROM shared
    JOIN shared_end USING (unit, hour)
    WHERE floor_ns + (place < place_end)::INT > 0
),
lot_hour AS (
    SELECT
        lot, hour, sum(h.ns)::BIGINT AS ns, any_value(p.commitment) AS commitment,
        half_even(sum(h.ns) * any_value(p.num), any_value(p.den)) AS nano
    FROM device_hour AS h
    JOIN device_price AS p USING (device_class, pool, day)
    GROUP BY lot, hour
),
charged AS (
    SELECT h.unit, h.hour, h.lot, h.rank, l.ns, l.commitment, l.nano
    FROM device_hour AS h
    JOIN lot_hour AS l USING (lot, hour)
),
weighed AS (
    SELECT
        p.*, h.lot, h.commitment, h.nano,
        h.nano * p.ns // h.ns AS floor_nano,
        row_number() OVER (
            ORDER BY
                lot, hour, h.nano * p.ns % h.ns DESC, rank, lease_id NULLS FIRST, position, rl_run_id NULLS FIRST
        ) AS place
    FROM owned AS p
    JOIN charged AS h USING (unit, hour)
),
left_over AS (
    SELECT lot, hour, min(place) + any_value(nano) - sum(floor_nano) AS place_end
    FROM weighed
    GROUP BY lot, hour
)
SELECT * EXCLUDE (lot, nano, floor_nano, place, place_end), floor_nano + (place < place_end)::INT AS cost_nano
FROM weighed
JOIN left_over USING (lot, hour);

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
