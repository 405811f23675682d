-- One row for each window of a serving device for which it was drawn at random whether leases are withheld. Lending's
-- cost to serving is how much worse requests fared in the other windows than in withheld ones.
--
-- event_time: When the row was recorded, as the window began, UTC, to the microsecond.
-- t0_ns: Start of the window, or of the agent if it started within the window, UTC nanoseconds since the Unix epoch.
-- t1_ns: End of the window (not in it); the device may have left before. UTC nanoseconds since the Unix epoch.
-- draw: The first 13 hexadecimal digits of SHA-256 of `holdout_seed/device_id/number`, divided by 16^13.
-- number: Number of the window, t0_ns // window_ns.
-- after_withheld: Whether leases were withheld in the window right before; NULL if none was drawn.
CREATE OR REPLACE VIEW holdout AS
WITH drawn AS (
    SELECT *, t0_ns // nullif(window_ns, 0) AS number
    FROM event
    WHERE kind = 'holdout' AND reckonable('holdout')
)
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    t0_ns, t1_ns, number, withheld, draw, holdout_share, holdout_seed, window_ns, washout_ns,
    CASE WHEN lag(t1_ns) OVER device = t0_ns THEN lag(withheld) OVER device END AS after_withheld
FROM drawn
WINDOW device AS (PARTITION BY run_id, provenance, device_id ORDER BY t0_ns, writer, seq);
