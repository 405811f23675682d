-- Every charge of the period, and `place`, by which they are in an order of their own: by hour, run, device, lease ...
WITH asked AS (
    FROM charge
    WHERE hour >= getvariable('from_ns') // 3600000000000 AND hour < getvariable('to_ns') // 3600000000000
),
bounds AS (
    SELECT min(hour) AS first_hour, max(place) + 1 AS places FROM asked
),
named AS (
    SELECT *, row_number() OVER (ORDER BY run_id, device_id) - 1 AS rank, count(*) OVER () AS units FROM stay
)
SELECT
    make_timestamp(c.hour * 3600000000) AS hour, s.run_id, s.provenance, nullif(s.device_id, '') AS device_id, s.pool,
    s.device_class, c.commitment, c.lease_id,
    CASE WHEN c.position < 8 THEN 'capacity' ELSE b.bucket END AS kind,
    b.bucket,
    CASE WHEN b.of_device THEN s.device_team ELSE s.team END AS team,
    c.policy_version, c.task, c.fate,
    CASE WHEN b.bucket <> 'idle' THEN c.cause
         WHEN s.pool = 'serving' AND c.lease_id IS NULL THEN 'could have been lent'
         ELSE 'could not be lent' END AS cause,
    c.route, c.ns, c.tokens, c.bytes, c.energy_mw_ns, c.cost_nano, c.writer, c.first_seq, c.last_seq,
    (((c.hour - first_hour) * s.units + s.rank) * places + c.place)::BIGINT AS place
FROM asked AS c
JOIN named AS s USING (unit)
JOIN bucket AS b USING (position)
CROSS JOIN bounds;
