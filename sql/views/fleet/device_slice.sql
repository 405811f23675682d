-- Use of every nanosecond of a device, one row for each interval [t0_ns, t1_ns). The base of all accounting:
-- serving + rollout + train + sync + activation + headroom + idle = ns, exactly.
--
-- event_time: When the slice was recorded, UTC, to the microsecond; the interval is [t0_ns, t1_ns).
-- lease_id: The lease in force throughout the interval; NULL while the device was not lent.
-- rollout_run_id: The RL run that has the rollout, sync, activation and headroom time; `run_id` if none is named.
--     Serving and idle time belongs to `run_id`.
-- train_run_id: The RL run that has the train time; `run_id` if none is named.
-- ns: Length of the interval, nanoseconds.
-- t0: Start of the interval, UTC, cut to the microsecond.
-- t1: End of the interval, UTC, cut to the microsecond.
CREATE OR REPLACE VIEW device_slice AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    coalesce(rollout_run_id, run_id) AS rollout_run_id, coalesce(train_run_id, run_id) AS train_run_id,
    t0_ns, t1_ns, CASE WHEN (t0_ns | t1_ns) BETWEEN 0 AND 4611686018427387903 THEN t1_ns - t0_ns END AS ns,
    CASE WHEN t0_ns BETWEEN 0 AND 4611686018427387903 THEN make_timestamp(t0_ns // 1000) END AS t0,
    CASE WHEN t1_ns BETWEEN 0 AND 4611686018427387903 THEN make_timestamp(t1_ns // 1000) END AS t1,
    serving_ns, rollout_ns, train_ns, sync_ns, activation_ns, headroom_ns, idle_ns, overlap_ns,
    beside_ns, beside_work_ns, delayed_ns
FROM event
ANTI JOIN uncounted_time USING (writer, seq)
WHERE kind = 'device_slice' AND reckonable('device_slice');
