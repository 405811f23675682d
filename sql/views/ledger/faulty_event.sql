-- Rows that the other views leave out, and events that contradict others. The views leave out a row with a number out
-- of range, a broken rule, or without a value that its kind needs: no sum could reckon with it. Contradictions are an
-- `event_id` that comes again with other content, of which all views show only the first, and a slice that begins
-- before an earlier one of its device ends. A program that writes with `rose` writes none; those of other programs may
-- hold some. The row itself is in `stored_event`.
--
-- event_time: When it happened, UTC, to the microsecond; NULL where `at_us` is no time.
-- at_us: When it happened as it stands there, UTC microseconds since the Unix epoch; it may be no time at all.
-- fault: What is wrong.
-- value: What stands in the field that `fault` names first, as text; NULL where it names none.
CREATE OR REPLACE VIEW faulty_event AS
WITH broken AS (
    SELECT
        *,
        CASE
        WHEN NOT coalesce(at_us BETWEEN 0 AND 4611686018427387, false)
        THEN 'at_us must be an integer from 0 to 4611686018427387, UTC microseconds from 1970 to 2116'
        WHEN NOT coalesce(CASE kind
            WHEN 'run' THEN coalesce(policy_version, 0) BETWEEN 0 AND 36028797018963967 AND
                coalesce(isfinite(trace_keep_share), true) AND coalesce(isfinite(trace_length_scale), true) AND
                coalesce(isfinite(trace_output_length_scale), true) AND coalesce(isfinite(trace_time_scale),
                true)
            WHEN 'device' THEN (coalesce(policy_version, 0) | coalesce(memory_bytes, 0)) BETWEEN 0 AND
                36028797018963967 AND t_ns BETWEEN 0 AND 4611686018427387903 AND device_id <> ''
            WHEN 'engine' THEN (coalesce(policy_version, 0) | coalesce(pid, 0) | coalesce(kv_bytes, 0) |
                coalesce(duration_ns, 0) | coalesce(moved_bytes, 0)) BETWEEN 0 AND 36028797018963967
            WHEN 'lease' THEN (coalesce(policy_version, 0) | kv_budget_bytes | coalesce(step, 0)) BETWEEN 0 AND
                36028797018963967 AND isfinite(compute_share) AND expires_at_us BETWEEN 0 AND 4611686018427387
                AND coalesce(isfinite(regret_share), true) AND lease_id <> ''
            WHEN 'preemption' THEN (coalesce(policy_version, 0) | coalesce(step, 0) | coalesce(duration_ns, 0) |
                coalesce(requests, 0) | coalesce(tokens_kept, 0) | coalesce(tokens_lost, 0) |
                coalesce(kv_budget_bytes_before, 0) | coalesce(kv_budget_bytes_after, 0) | coalesce(count, 0) |
                coalesce(longest_ns, 0) | coalesce(latency_ns, 0) | coalesce(latency_mean_ns, 0) |
                coalesce(returned_bytes, 0)) BETWEEN 0 AND 36028797018963967
            WHEN 'hold' THEN (coalesce(policy_version, 0) | coalesce(step, 0) | count | duration_ns) BETWEEN 0
                AND 36028797018963967
            WHEN 'holdout' THEN CASE WHEN (coalesce(policy_version, 0) | holdout_seed | window_ns | washout_ns)
                BETWEEN 0 AND 36028797018963967 AND (t0_ns | t1_ns) BETWEEN 0 AND 4611686018427387903 THEN t0_ns
                <= t1_ns AND t1_ns - t0_ns <= 36028797018963967 ELSE false END AND isfinite(draw) AND
                isfinite(holdout_share) AND device_id <> ''
            WHEN 'step_time' THEN (coalesce(policy_version, 0) | steps) BETWEEN 0 AND 36028797018963967 AND
                isfinite(error_share)
            WHEN 'sync' THEN (coalesce(policy_version, 0) | coalesce(base_version, 0) | wire_bytes | dense_bytes
                | coalesce(changed_elements, 0) | coalesce(total_elements, 0) | coalesce(encode_ns, 0) |
                coalesce(fetch_ns, 0) | coalesce(verify_ns, 0) | coalesce(stage_ns, 0) | coalesce(pause_ns, 0) |
                coalesce(acknowledge_ns, 0) | total_ns | coalesce(step, 0)) BETWEEN 0 AND 36028797018963967
            WHEN 'turn' THEN (coalesce(policy_version, 0) | coalesce(step, 0) | turn | attempt | prompt_tokens |
                cached_tokens | output_tokens | coalesce(answer_tokens, 0) | queue_ns | duration_ns) BETWEEN 0
                AND 36028797018963967
            WHEN 'trajectory' THEN (coalesce(policy_version, 0) | step | turns | prompt_tokens | output_tokens |
                coalesce(answer_tokens, 0) | duration_ns) BETWEEN 0 AND 36028797018963967 AND staleness BETWEEN
                -36028797018963967 AND 36028797018963967
            WHEN 'verdict' THEN (coalesce(policy_version, 0) | step) BETWEEN 0 AND 36028797018963967 AND
                isfinite(reward) AND isfinite(threshold)
            WHEN 'request' THEN (coalesce(policy_version, 0) | prompt_tokens | output_tokens | coalesce(ttft_ns,
                0) | coalesce(tpot_mean_ns, 0) | coalesce(tpot_max_ns, 0) | e2e_ns | ttft_budget_ns |
                tpot_budget_ns | send_delay_ns | coalesce(cached_tokens, 0)) BETWEEN 0 AND 36028797018963967
            WHEN 'device_slice' THEN CASE WHEN (coalesce(policy_version, 0) | serving_ns | rollout_ns | train_ns
                | sync_ns | activation_ns | headroom_ns | idle_ns | overlap_ns) BETWEEN 0 AND 36028797018963967
                AND (t0_ns | t1_ns) BETWEEN 0 AND 4611686018427387903 THEN t0_ns <= t1_ns AND t1_ns - t0_ns <=
                36028797018963967 AND serving_ns + rollout_ns + train_ns + sync_ns + activation_ns + headroom_ns
                + idle_ns = t1_ns - t0_ns ELSE false END AND device_id <> ''
            WHEN 'step' THEN (coalesce(policy_version, 0) | step | groups | trajectories | trajectories_accepted
                | tokens_trained | rollout_ns | train_ns | sync_ns | total_ns) BETWEEN 0 AND 36028797018963967
                AND isfinite(reward_mean) AND coalesce(isfinite(loss), true) AND coalesce(isfinite(entropy),
                true) AND coalesce(isfinite(kl), true) AND coalesce(isfinite(grad_norm), true)
            WHEN 'power' THEN CASE WHEN (coalesce(policy_version, 0) | coalesce(power_mw, 0) |
                coalesce(energy_mj, 0) | coalesce(package_energy_mj, 0) | coalesce(memory_used_bytes, 0) |
                coalesce(sm_clock_mhz, 0) | coalesce(mig_instances, 0)) BETWEEN 0 AND 36028797018963967 AND
                (t0_ns | t1_ns) BETWEEN 0 AND 4611686018427387903 THEN t0_ns <= t1_ns AND t1_ns - t0_ns <=
                36028797018963967 ELSE false END AND coalesce(isfinite(busy_share), true)
            WHEN 'scale_down' THEN CASE WHEN coalesce(policy_version, 0) BETWEEN 0 AND 36028797018963967 AND
                (t0_ns | t1_ns) BETWEEN 0 AND 4611686018427387903 THEN t0_ns <= t1_ns AND t1_ns - t0_ns <=
                36028797018963967 ELSE false END AND device_id <> ''
            WHEN 'clock' THEN coalesce(policy_version, 0) BETWEEN 0 AND 36028797018963967 AND offset_ns BETWEEN
                -4611686018427387903 AND 4611686018427387903 AND coalesce(device_time_offset_ns BETWEEN
                -4611686018427387903 AND 4611686018427387903, true) AND device_id <> ''
            WHEN 'ledger' THEN coalesce(policy_version, 0) BETWEEN 0 AND 36028797018963967
            WHEN 'access' THEN (coalesce(policy_version, 0) | coalesce(result_rows, 0) | coalesce(duration_ns,
                0) | coalesce(count, 0)) BETWEEN 0 AND 36028797018963967
            ELSE false END, false)
        THEN 'a number is out of range, a rule is broken, or a value that the kind needs is missing' END AS fault
    FROM stored_event
),
-- The time a retry was made at is not its content.
later AS (
    SELECT *, hash(*COLUMNS(* EXCLUDE (writer, seq, at_us, first_writer, first_seq))) AS content
    FROM (
        SELECT stored.*, retry.first_writer, retry.first_seq
        FROM stored_event AS stored
        JOIN retry ON stored.writer = retry.writer AND stored.seq = retry.seq
    )
),
first AS (
    SELECT writer AS first_writer, seq AS first_seq, hash(*COLUMNS(* EXCLUDE (writer, seq, at_us))) AS first_content
    FROM (FROM stored_event AS stored SEMI JOIN retry ON stored.writer = first_writer AND stored.seq = first_seq)
),
slice AS (
    SELECT
        *, epoch_us(event_time) AS at_us, 'device_slice' AS kind,
        max(t1_ns) OVER (
            PARTITION BY run_id, provenance, device_id ORDER BY t0_ns, t1_ns, writer, seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_to_ns
    FROM device_slice
)
SELECT
    writer, seq, event_id, run_id, provenance,
    CASE WHEN at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(at_us) END AS event_time, at_us, kind,
    device_id, engine_id, lease_id, trajectory_id, policy_version, fault, value
FROM (
    SELECT *, json_extract_string(to_json(broken), '$.' || split_part(fault, ' ', 1)) AS value
    FROM broken
    WHERE fault IS NOT NULL
    UNION ALL BY NAME
    SELECT
        * EXCLUDE (first_writer, first_seq, content, first_content),
        'event_id must be that of one event, and ' || first_writer || '/' || first_seq || ', which counts, ' ||
        if(first_content IS NULL, 'was archived: restore it to compare them', 'has other content') AS fault,
        event_id AS value
    FROM later
    LEFT JOIN first USING (first_writer, first_seq)
    WHERE content IS DISTINCT FROM first_content
    UNION ALL BY NAME
    SELECT
        * EXCLUDE (t0_ns, event_time),
        't0_ns must be at or after the end of the slice before it, ' || covered_to_ns AS fault,
        t0_ns::VARCHAR AS value
    FROM slice
    WHERE t0_ns < covered_to_ns
);
