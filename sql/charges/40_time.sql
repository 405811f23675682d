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
-- Where the run has only a part of the hour, its buckets are what that part is divided into.
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
