-- One row for each lease: a rollout engine's permission to use a serving device. A lease is closed once, by the first
-- of released, preempted and expired, and open until then, so granted = released + preempted + expired + open. A lease
-- ends at its expiry, whatever process died: a lease that nothing closed has expired if its fleet's newest event is
-- more than a minute after its expiry.
--
-- rl_run_id: The RL run that it was first granted for; `run_id` if none is named. `device_slice` says whose time it
--     then was.
-- fleet_run_id: The fleet's run; two fleets may use the same lease ids.
-- granted_at: When it was granted, UTC.
-- closed_at: When it was closed, UTC; NULL while it is open.
-- closed_by: `released`, `preempted` or `expired`; NULL while it is open.
-- close_reason: Why it was closed, in words.
-- duration_ns: From grant to close, nanoseconds (clocked to the microsecond); NULL while it is open.
-- expires_at: When it ends unless it is renewed again, UTC, by the last event that did not close it.
-- kv_budget_granted_bytes: KV-cache memory it was granted, bytes.
-- kv_budget_last_bytes: KV-cache memory it last allowed before it was closed, bytes.
-- kv_budget_min_bytes: The least KV-cache memory it ever allowed before it was closed, bytes.
-- compute_share: Share of the device's idle compute that was granted, 0 to 1.
-- step: Number of the RL step it was granted in.
-- renewals: How often it was renewed.
-- frozen: Whether its budget was ever frozen for the rest of a step, after pressure from serving.
CREATE OR REPLACE VIEW lease AS
WITH change AS (
    SELECT
        * REPLACE (coalesce(fleet_run_id, run_id) AS fleet_run_id),
        action IN ('released', 'preempted', 'expired') AS closes,
        row_number() OVER (PARTITION BY run_id, provenance, fleet_run_id, lease_id ORDER BY at_us, writer, seq) AS n
    FROM event
    WHERE kind = 'lease' AND reckonable('lease')
),
state AS (
    SELECT
        arg_min(writer, n) AS writer, arg_min(seq, n) AS seq, arg_min(event_id, n) AS event_id,
        run_id, provenance, min(event_time) AS event_time, fleet_run_id,
        lease_id, arg_min(device_id, n) AS device_id, arg_min(engine_id, n) AS engine_id,
        arg_min(rl_run_id, n) AS rl_run_id,
        min(event_time) FILTER (action = 'granted') AS granted_at,
        arg_min(struct_pack(happened := event_time, action := action, reason := reason), n) FILTER (closes) AS closing,
        arg_max(CASE WHEN expires_at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(expires_at_us) END, n)
            FILTER (NOT closes) AS expires_at,
        arg_min(kv_budget_bytes, n) FILTER (action = 'granted') AS kv_budget_granted_bytes,
        arg_max(kv_budget_bytes, n) FILTER (NOT closes) AS kv_budget_last_bytes,
        min(kv_budget_bytes) FILTER (NOT closes) AS kv_budget_min_bytes,
        arg_min(compute_share, n) FILTER (action = 'granted') AS compute_share,
        arg_min(step, n) AS step,
        count(*) FILTER (action = 'renewed') AS renewals,
        bool_or(action = 'frozen') AS frozen
    FROM change
    GROUP BY run_id, provenance, fleet_run_id, lease_id
),
newest AS (
    SELECT run_id AS fleet_run_id, provenance, max(newest_at_us) AS newest_at_us
    FROM daily_event
    GROUP BY run_id, provenance
),
ended AS (
    SELECT
        state.* REPLACE (
            CASE
            WHEN closing IS NULL AND newest_at_us > epoch_us(expires_at) + 60000000
            THEN struct_pack(
                happened := greatest(expires_at, granted_at), action := 'expired', reason := 'it was not renewed'
            )
            ELSE closing END AS closing
        )
    FROM state
    LEFT JOIN newest USING (fleet_run_id, provenance)
)
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    lease_id, device_id, engine_id, coalesce(rl_run_id, run_id) AS rl_run_id,
    fleet_run_id,
    granted_at,
    closing.happened AS closed_at,
    closing.action AS closed_by,
    closing.reason AS close_reason,
    1000 * (epoch_us(closing.happened) - epoch_us(granted_at)) AS duration_ns,
    expires_at,
    kv_budget_granted_bytes, kv_budget_last_bytes, kv_budget_min_bytes,
    compute_share, step, renewals, frozen
FROM ended;
