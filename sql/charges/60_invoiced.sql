-- Items billed beside device time: bytes of weight syncs at the price of their route, charged to their lease, or
-- outside of one to the next lease of the device, since they were sent for it; and metered energy, where the price of
-- the device does not hold it. Each hour's sum is rounded once, half to even.
CREATE OR REPLACE TEMP TABLE invoiced AS
WITH due AS (
    FROM sent SEMI JOIN todo USING (unit, hour)
),
later AS (
    FROM granted WHERE at_us >= (SELECT min(at_us) FROM due WHERE lease_id IS NULL)
),
leased AS (
    FROM due WHERE lease_id IS NOT NULL
    UNION ALL BY NAME
    SELECT s.* EXCLUDE (lease_id), g.lease_id
    FROM (FROM due WHERE lease_id IS NULL) AS s
    ASOF LEFT JOIN later AS g ON s.unit = g.unit AND s.at_us <= g.at_us
),
transfer AS (
    SELECT
        owner AS unit, hour, hour // 24 AS day, lease_id, rl_run_id, route, policy_version, sum(bytes) AS bytes,
        CASE WHEN min(writer) = max(writer) THEN min(writer) END AS writer,
        CASE WHEN min(writer) = max(writer) THEN min(seq) END AS first_seq,
        CASE WHEN min(writer) = max(writer) THEN max(seq) END AS last_seq
    FROM leased
    JOIN owned USING (unit, hour)
    GROUP BY owner, hour, day, lease_id, rl_run_id, route, policy_version
),
energy AS (
    SELECT
        owner AS unit, hour, hour // 24 AS day, sum(ns) AS ns, sum(energy_mw_ns) AS read_mw_ns,
        CASE WHEN min(writer) = max(writer) THEN min(writer) END AS writer,
        CASE WHEN min(writer) = max(writer) THEN min(first_seq) END AS first_seq,
        CASE WHEN min(writer) = max(writer) THEN max(last_seq) END AS last_seq
    FROM metered
    JOIN owned USING (unit, hour)
    GROUP BY owner, hour, day
),
-- A device's reading is divided among the runs that share it.
shared AS (
    SELECT
        e.* EXCLUDE (ns, read_mw_ns),
        CASE WHEN g.ns IS NULL THEN read_mw_ns ELSE read_mw_ns * (e.ns - g.ns) // e.ns END AS energy_mw_ns
    FROM energy AS e
    LEFT JOIN (
        SELECT owner AS unit, hour, sum(given_up.ns) AS ns
        FROM given_up
        JOIN owned USING (unit, hour)
        WHERE kind = 'power'
        GROUP BY owner, hour
    ) AS g USING (unit, hour)
)
SELECT t.* EXCLUDE (day), 8 AS position, half_even(t.bytes * p.num, p.den) AS cost_nano
FROM transfer AS t
JOIN transfer_price AS p USING (route, day)
UNION ALL BY NAME
SELECT e.* EXCLUDE (day), 9 AS position, half_even(e.energy_mw_ns * p.num, p.den) AS cost_nano
FROM shared AS e
JOIN device_hour AS h USING (unit, hour)
JOIN device_price AS d ON d.device_class = h.device_class AND d.pool = h.pool AND d.day = e.day
JOIN energy_price AS p ON p.day = e.day
WHERE NOT d.energy_included;

-- The charges of the hours in `todo` stand from now on. `place`: their order within an hour of a device.
INSERT INTO charge BY NAME
WITH row AS (
    FROM time_row WHERE position <> 1
    UNION ALL BY NAME
    FROM rollout_row
    UNION ALL BY NAME
    FROM invoiced
)
SELECT
    * EXCLUDE (ns, tokens, bytes, energy_mw_ns),
    row_number() OVER (
        ORDER BY
            lease_id NULLS FIRST, position, rl_run_id NULLS FIRST, policy_version NULLS FIRST, task NULLS FIRST,
            fate NULLS FIRST, cause NULLS FIRST, route NULLS FIRST
    ) AS place,
    coalesce(ns, 0) AS ns, coalesce(tokens, 0) AS tokens, coalesce(bytes, 0) AS bytes,
    coalesce(energy_mw_ns, 0) AS energy_mw_ns
FROM row;
INSERT INTO priced FROM todo;
