-- Hours of devices about which something new is known: what was added, trajectories whose fate may have changed, and
-- syncs that a new lease is charged.
INSERT INTO touched
SELECT unit, unnest(range(t0_ns // 3600000000000, (t1_ns - 1) // 3600000000000 + 1))
FROM new_slice
UNION
SELECT unit, hour FROM own_token
UNION
SELECT unit, hour FROM own_attempt
UNION
SELECT unit, at_us // 3600000000
FROM new_other
WHERE kind = 'sync' OR kind = 'preemption' AND tokens_lost > 0
UNION
SELECT unit, unnest(range(t0_ns // 3600000000000, (t1_ns - 1) // 3600000000000 + 1))
FROM new_other
WHERE kind = 'power'
UNION
SELECT s.unit, s.hour
FROM (FROM sent WHERE lease_id IS NULL) AS s
ASOF JOIN granted AS g ON s.unit = g.unit AND s.at_us <= g.at_us
SEMI JOIN (FROM new_other WHERE kind = 'lease' AND action = 'granted') AS n
    ON g.unit = n.unit AND g.at_us = n.at_us;
