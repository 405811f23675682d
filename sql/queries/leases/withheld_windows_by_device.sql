-- For the infra lead: how often were leases withheld at random, and does that agree with the draws in the ledger?
--
-- since (TIMESTAMP): only windows that began at or after this time, UTC.
-- until (TIMESTAMP): only windows that began before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `withheld_share` comes near `holdout_share` in the long run. `drawn_otherwise` counts windows whose draw is not what
-- seed, device and number give, or that were not treated as their draw says. `lent_windows` counts withheld windows in
-- which a lease was in force after the wash-out. A lease that nothing closed counts up to its expiry or the last slice
-- that names it, whichever came first. Both counts should be 0, and a run should have one share, seed, window and
-- wash-out. Otherwise these windows cannot tell what lending costs serving. `held_ns` is how long rollouts wanted the
-- device in vain: what the windows cost in harvest.
WITH drawn AS (
    SELECT
        *,
        t0_ns + CASE WHEN coalesce(after_withheld, false) THEN 0 ELSE washout_ns END AS clean_ns,
        -- An agent that was started again drew the rest of the window anew.
        least(t1_ns, coalesce(lead(t0_ns) OVER device, t1_ns)) AS end_ns,
        ('0x' || sha256(holdout_seed || '/' || device_id || '/' || number)[:13])::BIGINT / 16 ** 13 AS drawn_again
    FROM holdout
    WHERE (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
      AND (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
    WINDOW device AS (PARTITION BY run_id, provenance, device_id ORDER BY t0_ns, writer, seq)
),
named AS (
    SELECT run_id, provenance, lease_id, max(t1_ns) // 1000 AS last_us
    FROM device_slice
    SEMI JOIN (FROM lease WHERE closed_at IS NULL) USING (run_id, provenance, lease_id)
    WHERE (getvariable('run_id') IS NULL OR run_id = getvariable('run_id'))
      AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
    GROUP BY ALL
),
leased AS (
    SELECT
        run_id, provenance, device_id, epoch_us(granted_at) AS from_us,
        -- `least` passes over NULL.
        coalesce(epoch_us(closed_at), least(epoch_us(expires_at), last_us)) AS to_us
    FROM lease
    LEFT JOIN named USING (run_id, provenance, lease_id)
),
lent AS (
    SELECT drawn.writer, drawn.seq
    FROM drawn
    SEMI JOIN leased
        ON leased.run_id = drawn.run_id AND leased.provenance = drawn.provenance
       AND leased.device_id = drawn.device_id
       AND leased.from_us < drawn.end_ns // 1000 AND drawn.clean_ns // 1000 < leased.to_us
    WHERE drawn.withheld AND drawn.clean_ns < drawn.end_ns
),
held AS (
    SELECT provenance, run_id, device_id, sum(duration_ns)::BIGINT AS held_ns
    FROM hold
    WHERE reason = 'withheld'
      AND (getvariable('since') IS NULL OR event_time >= getvariable('since')::TIMESTAMP)
      AND (getvariable('until') IS NULL OR event_time < getvariable('until')::TIMESTAMP)
    GROUP BY ALL
)
SELECT
    drawn.provenance, drawn.run_id, drawn.device_id,
    drawn.holdout_share, drawn.holdout_seed, drawn.window_ns, drawn.washout_ns,
    count(*) AS windows,
    count(*) FILTER (drawn.withheld) AS withheld,
    count(*) FILTER (drawn.withheld) / count(*) AS withheld_share,
    count(*) FILTER (drawn.draw <> drawn.drawn_again OR drawn.withheld <> (drawn.draw < drawn.holdout_share))
        AS drawn_otherwise,
    count(lent.seq) AS lent_windows,
    coalesce(any_value(held.held_ns), 0) AS held_ns
FROM drawn
LEFT JOIN lent USING (writer, seq)
LEFT JOIN held USING (provenance, run_id, device_id)
GROUP BY ALL
ORDER BY ALL;
