-- Each hour's cost, rounded once, half to even, and divided among leases and buckets by time, largest remainder first.
-- What no slice reports is the bucket `unaccounted`. `writer` and its seqs are NULL where several reported the same.
CREATE OR REPLACE TEMP TABLE time_row AS
WITH summed AS (
    SELECT
        run_id, provenance, device_id, hour, lease_id,
        CASE WHEN min(writer) = max(writer) THEN min(writer) END AS writer,
        CASE WHEN min(writer) = max(writer) THEN min(first_seq) END AS first_seq,
        CASE WHEN min(writer) = max(writer) THEN max(last_seq) END AS last_seq,
        sum(serving_ns) AS serving_ns, sum(rollout_ns) AS rollout_ns, sum(train_ns) AS train_ns,
        sum(sync_ns) AS sync_ns, sum(activation_ns) AS activation_ns, sum(headroom_ns) AS headroom_ns,
        sum(idle_ns) AS idle_ns
    FROM slice
    SEMI JOIN todo USING (run_id, provenance, device_id, hour)
    GROUP BY run_id, provenance, device_id, hour, lease_id
),
bucketed AS (
    SELECT
        run_id, provenance, device_id, hour, lease_id, writer, first_seq, last_seq,
        unnest(range(7)) AS position,
        unnest(['serving', 'rollout', 'train', 'sync', 'activation', 'headroom', 'idle']) AS bucket,
        unnest([serving_ns, rollout_ns, train_ns, sync_ns, activation_ns, headroom_ns, idle_ns]) AS ns
    FROM summed
),
reported AS (
    SELECT run_id, provenance, device_id, hour, sum(ns) AS ns FROM bucketed GROUP BY ALL
),
part AS (
    FROM bucketed WHERE ns > 0
    UNION ALL BY NAME
    SELECT h.run_id, h.provenance, h.device_id, h.hour, 7 AS position, 'unaccounted' AS bucket,
           h.ns - coalesce(r.ns, 0) AS ns
    FROM device_hour AS h
    LEFT JOIN reported AS r USING (run_id, provenance, device_id, hour)
    WHERE h.ns > coalesce(r.ns, 0)
),
charged AS (
    SELECT h.*, p.commitment, half_even(h.ns * p.num, p.den) AS nano
    FROM device_hour AS h
    JOIN device_price AS p USING (device_class, pool, day)
),
weighed AS (
    SELECT
        p.*, h.pool, h.device_class, h.commitment, h.team, h.device_team, h.nano,
        h.nano * p.ns // h.ns AS floor_nano,
        row_number() OVER (
            ORDER BY run_id, provenance, device_id, hour, h.nano * p.ns % h.ns DESC, lease_id NULLS FIRST, position
        ) AS place
    FROM part AS p
    JOIN charged AS h USING (run_id, provenance, device_id, hour)
),
left_over AS (
    SELECT
        run_id, provenance, device_id, hour, min(place) + any_value(nano) - sum(floor_nano) AS place_end
    FROM weighed
    GROUP BY run_id, provenance, device_id, hour
)
SELECT * EXCLUDE (nano, floor_nano, place, place_end), floor_nano + (place < place_end)::INT AS cost_nano
FROM weighed
JOIN left_over USING (run_id, provenance, device_id, hour);
