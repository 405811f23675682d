-- The newest 500 preemptions in [from_ns, to_ns), newest first; `preemptions` is how many rows there were. `part` names
-- one action; NULL: every one. A row of yields is of a lease and second, and `times` is how many there were.
-- `reaction_ms` as in `totals`.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
WITH newest AS (
    SELECT *, count(*) OVER () AS preemptions
    FROM preemption
    WHERE getvariable('run_id') IN (run_id, rl_run_id)
      AND event_time >= make_timestamp(getvariable('from_ns') // 1000)
      AND event_time < make_timestamp(getvariable('to_ns') // 1000)
      AND coalesce(action = getvariable('part'), true)
    ORDER BY event_time DESC, writer, seq
    LIMIT 500
)
SELECT
    p.event_time, p.action, p.reason, p.device_id, p.lease_id, p.step,
    coalesce(p.count, 1) AS times,
    coalesce(p.latency_ns, CASE p.action
        WHEN 'cut' THEN p.duration_ns
        WHEN 'revoke' THEN 1000 * (epoch_us(l.closed_at) - epoch_us(p.event_time))
    END) / 1e6 AS reaction_ms,
    p.duration_ns / 1e6 AS waited_ms,
    p.requests, p.tokens_kept, p.tokens_lost,
    p.event_id, p.preemptions
FROM newest AS p
LEFT JOIN lease AS l USING (run_id, provenance, lease_id)
ORDER BY p.event_time DESC, p.writer, p.seq;
