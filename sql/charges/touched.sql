-- Hours of devices about which something new is known: what was added, trajectories whose fate may have changed, and
-- syncs that a new lease is charged.
INSERT INTO touched
SELECT run_id, provenance, device_id, unnest(range(t0_ns // 3600000000000, (t1_ns - 1) // 3600000000000 + 1))
FROM new_slice
UNION
SELECT m.run_id, m.provenance, t.device_id, t.hour
FROM (SELECT number, device_id, hour FROM own_token UNION SELECT number, device_id, hour FROM own_attempt) AS t
JOIN moved AS m USING (number)
UNION
SELECT run_id, provenance, device_id, at_us // 3600000000
FROM new_other
WHERE kind = 'sync' OR kind = 'preemption' AND tokens_lost > 0
UNION
SELECT run_id, provenance, device_id, unnest(range(t0_ns // 3600000000000, (t1_ns - 1) // 3600000000000 + 1))
FROM new_other
WHERE kind = 'power'
UNION
SELECT s.run_id, s.provenance, s.device_id, s.hour
FROM (FROM sent WHERE lease_id IS NULL) AS s
ASOF JOIN granted AS g
    ON s.run_id = g.run_id AND s.provenance = g.provenance AND s.device_id = g.device_id AND s.at_us <= g.at_us
SEMI JOIN (FROM new_other WHERE kind = 'lease' AND action = 'granted') AS n
    ON g.run_id = n.run_id AND g.provenance = n.provenance AND g.device_id = n.device_id AND g.at_us = n.at_us;
