-- Roll-ups of a made-up fleet: `devices` devices over `days` days. One query for each daily view.
-- name: daily_device_time
SELECT DATE '2025-11-01' + CAST(d.d AS INTEGER) AS day, 'year' AS run_id, 'simulated' AS provenance,
    format('gpu{:04d}', g.g) AS device_id, lent.lent AS lent, 43200 AS slices, 43200000000000 AS ns,
    CAST(20000000000000 + hash(d.d, g.g) % 1000000000000 AS BIGINT) AS serving_ns,
    CAST(CASE WHEN lent.lent THEN 15000000000000 ELSE 0 END AS BIGINT) AS rollout_ns
FROM range(getvariable('days')) AS d(d), range(getvariable('devices')) AS g(g), (VALUES (true), (false)) AS lent(lent);

-- name: daily_request
SELECT DATE '2025-11-01' + CAST(d.d AS INTEGER) AS day, 'year' AS run_id, 'simulated' AS provenance,
    format('gpu{:04d}', g.g) AS device_id, lent.lent AS lent, 43200 AS requests,
    CAST(43000 + hash(d.d, g.g, lent.lent) % 200 AS BIGINT) AS slo_ok
FROM range(getvariable('days')) AS d(d), range(getvariable('devices')) AS g(g), (VALUES (true), (false)) AS lent(lent);

-- name: daily_latency
SELECT DATE '2025-11-01' + CAST(d.d AS INTEGER) AS day, 'year' AS run_id, 'simulated' AS provenance,
    lent.lent AS lent, metric.metric AS metric, b.b AS bin, CAST(2 ^ (b.b / 16) AS BIGINT) AS from_ns,
    CAST(2 ^ ((b.b + 1) / 16) AS BIGINT) AS until_ns, CAST(1 + hash(d.d, b.b) % 1000000 AS BIGINT) AS requests
FROM range(getvariable('days')) AS d(d), range(360, 520) AS b(b), (VALUES (true), (false)) AS lent(lent),
    (VALUES ('ttft'), ('tpot'), ('e2e')) AS metric(metric);

-- name: daily_preemption
SELECT DATE '2025-11-01' + CAST(d.d AS INTEGER) AS day, 'year' AS run_id, 'simulated' AS provenance,
    format('gpu{:04d}', g.g) AS device_id, act.action AS action, act.reason AS reason,
    CAST(1 + hash(d.d, g.g) % 9000 AS BIGINT) AS preemptions, CAST(hash(g.g) % 1000000000000 AS BIGINT) AS duration_ns
FROM range(getvariable('days')) AS d(d), range(getvariable('devices')) AS g(g),
    (VALUES ('yield', 'a serving step'), ('cut', 'serving grew into its headroom'), ('cut', 'rollouts outgrew their budget'),
     ('revoke', 'serving is late on a request')) AS act(action, reason);

-- name: daily_lease
SELECT DATE '2025-11-01' + CAST(d.d AS INTEGER) AS day, 'year' AS run_id, 'simulated' AS provenance,
    format('gpu{:04d}', g.g) AS device_id, act.action AS action, CAST(1 + hash(d.d, g.g) % 9000 AS BIGINT) AS changes
FROM range(getvariable('days')) AS d(d), range(getvariable('devices')) AS g(g),
    (VALUES ('granted'), ('renewed'), ('resized'), ('frozen'), ('released'), ('preempted')) AS act(action);
