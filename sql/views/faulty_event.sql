-- Rows of the ledger that are no events as `rose/events.py` declares them, and events that contradict others: those
-- with the `event_id` of another and other content, of which all views show only the first, and slices that
-- begin before an earlier one of their device ends. A sound program writes none; those of other
-- programs may hold some. Where a number is at fault the other views leave the row out.
--
-- event_time: When it happened, UTC, to the microsecond; NULL where `at_us` is no time.
-- at_us: When it happened as it stands there, UTC microseconds since the Unix epoch; it may be no time at all.
-- fault: The field, and what it must be.
-- value: What stands there, as text; NULL for nothing.
CREATE OR REPLACE VIEW faulty_event AS
WITH broken AS (
    SELECT
        *,
        CASE
        WHEN NOT (coalesce(at_us BETWEEN 0 AND 4611686018427387, false))
        THEN 'at_us must be an integer from 0 to 4611686018427387, UTC microseconds from 1970 to 2116'
        WHEN NOT (event_id <> '') THEN 'event_id must be text that is not empty'
        WHEN NOT (run_id <> '') THEN 'run_id must be text that is not empty'
        WHEN NOT (device_id <> '') THEN 'device_id must be text that is not empty'
        WHEN NOT (engine_id <> '') THEN 'engine_id must be text that is not empty'
        WHEN NOT (lease_id <> '') THEN 'lease_id must be text that is not empty'
        WHEN NOT (trajectory_id <> '') THEN 'trajectory_id must be text that is not empty'
        WHEN NOT (policy_version BETWEEN 0 AND 36028797018963967)
        THEN 'policy_version must be an integer from 0 to 36028797018963967'
        WHEN NOT (fleet_run_id <> '') THEN 'fleet_run_id must be text that is not empty'
        WHEN NOT (trace_keep_share BETWEEN 0 AND 1) THEN 'trace_keep_share must be a number from 0 to 1'
        WHEN NOT (isfinite(trace_length_scale)) THEN 'trace_length_scale must be a finite number'
        WHEN NOT (isfinite(trace_output_length_scale)) THEN 'trace_output_length_scale must be a finite number'
        WHEN NOT (isfinite(trace_time_scale)) THEN 'trace_time_scale must be a finite number'
        WHEN NOT (t_ns BETWEEN 0 AND 4611686018427387903)
        THEN 't_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (memory_bytes BETWEEN 0 AND 36028797018963967)
        THEN 'memory_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (hardware_id <> '') THEN 'hardware_id must be text that is not empty'
        WHEN NOT (pid BETWEEN 0 AND 36028797018963967) THEN 'pid must be an integer from 0 to 36028797018963967'
        WHEN NOT (kv_bytes BETWEEN 0 AND 36028797018963967)
        THEN 'kv_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (duration_ns BETWEEN 0 AND 36028797018963967)
        THEN 'duration_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (moved_bytes BETWEEN 0 AND 36028797018963967)
        THEN 'moved_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (kv_budget_bytes BETWEEN 0 AND 36028797018963967)
        THEN 'kv_budget_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (compute_share BETWEEN 0 AND 1) THEN 'compute_share must be a number from 0 to 1'
        WHEN NOT (expires_at_us BETWEEN 0 AND 4611686018427387)
        THEN 'expires_at_us must be an integer from 0 to 4611686018427387, UTC microseconds from 1970 to 2116'
        WHEN NOT (step BETWEEN 0 AND 36028797018963967) THEN 'step must be an integer from 0 to 36028797018963967'
        WHEN NOT (regret_share BETWEEN 0 AND 1) THEN 'regret_share must be a number from 0 to 1'
        WHEN NOT (rl_run_id <> '') THEN 'rl_run_id must be text that is not empty'
        WHEN NOT (requests BETWEEN 0 AND 36028797018963967)
        THEN 'requests must be an integer from 0 to 36028797018963967'
        WHEN NOT (tokens_kept BETWEEN 0 AND 36028797018963967)
        THEN 'tokens_kept must be an integer from 0 to 36028797018963967'
        WHEN NOT (tokens_lost BETWEEN 0 AND 36028797018963967)
        THEN 'tokens_lost must be an integer from 0 to 36028797018963967'
        WHEN NOT (kv_budget_bytes_before BETWEEN 0 AND 36028797018963967)
        THEN 'kv_budget_bytes_before must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (kv_budget_bytes_after BETWEEN 0 AND 36028797018963967)
        THEN 'kv_budget_bytes_after must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (count BETWEEN 0 AND 36028797018963967) THEN 'count must be an integer from 0 to 36028797018963967'
        WHEN NOT (longest_ns BETWEEN 0 AND 36028797018963967)
        THEN 'longest_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (latency_ns BETWEEN 0 AND 36028797018963967)
        THEN 'latency_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (latency_mean_ns BETWEEN 0 AND 36028797018963967)
        THEN 'latency_mean_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (returned_bytes BETWEEN 0 AND 36028797018963967)
        THEN 'returned_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (t0_ns BETWEEN 0 AND 4611686018427387903)
        THEN 't0_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (t1_ns BETWEEN 0 AND 4611686018427387903)
        THEN 't1_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (draw BETWEEN 0 AND 1) THEN 'draw must be a number from 0 to 1'
        WHEN NOT (holdout_share BETWEEN 0 AND 1) THEN 'holdout_share must be a number from 0 to 1'
        WHEN NOT (holdout_seed BETWEEN 0 AND 36028797018963967)
        THEN 'holdout_seed must be an integer from 0 to 36028797018963967'
        WHEN NOT (window_ns BETWEEN 0 AND 36028797018963967)
        THEN 'window_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (washout_ns BETWEEN 0 AND 36028797018963967)
        THEN 'washout_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (steps BETWEEN 0 AND 36028797018963967) THEN 'steps must be an integer from 0 to 36028797018963967'
        WHEN NOT (isfinite(error_share)) THEN 'error_share must be a finite number'
        WHEN NOT (base_version BETWEEN 0 AND 36028797018963967)
        THEN 'base_version must be an integer from 0 to 36028797018963967'
        WHEN NOT (wire_bytes BETWEEN 0 AND 36028797018963967)
        THEN 'wire_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (dense_bytes BETWEEN 0 AND 36028797018963967)
        THEN 'dense_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (changed_elements BETWEEN 0 AND 36028797018963967)
        THEN 'changed_elements must be an integer from 0 to 36028797018963967'
        WHEN NOT (total_elements BETWEEN 0 AND 36028797018963967)
        THEN 'total_elements must be an integer from 0 to 36028797018963967'
        WHEN NOT (encode_ns BETWEEN 0 AND 36028797018963967)
        THEN 'encode_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (fetch_ns BETWEEN 0 AND 36028797018963967)
        THEN 'fetch_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (verify_ns BETWEEN 0 AND 36028797018963967)
        THEN 'verify_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (stage_ns BETWEEN 0 AND 36028797018963967)
        THEN 'stage_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (pause_ns BETWEEN 0 AND 36028797018963967)
        THEN 'pause_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (acknowledge_ns BETWEEN 0 AND 36028797018963967)
        THEN 'acknowledge_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (total_ns BETWEEN 0 AND 36028797018963967)
        THEN 'total_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (group_id <> '') THEN 'group_id must be text that is not empty'
        WHEN NOT (turn BETWEEN 0 AND 36028797018963967) THEN 'turn must be an integer from 0 to 36028797018963967'
        WHEN NOT (attempt BETWEEN 0 AND 36028797018963967) THEN 'attempt must be an integer from 0 to 36028797018963967'
        WHEN NOT (prompt_tokens BETWEEN 0 AND 36028797018963967)
        THEN 'prompt_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (cached_tokens BETWEEN 0 AND 36028797018963967)
        THEN 'cached_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (output_tokens BETWEEN 0 AND 36028797018963967)
        THEN 'output_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (answer_tokens BETWEEN 0 AND 36028797018963967)
        THEN 'answer_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (queue_ns BETWEEN 0 AND 36028797018963967)
        THEN 'queue_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (turns BETWEEN 0 AND 36028797018963967) THEN 'turns must be an integer from 0 to 36028797018963967'
        WHEN NOT (staleness BETWEEN -36028797018963967 AND 36028797018963967)
        THEN 'staleness must be an integer from -36028797018963967 to 36028797018963967'
        WHEN NOT (isfinite(reward)) THEN 'reward must be a finite number'
        WHEN NOT (isfinite(threshold)) THEN 'threshold must be a finite number'
        WHEN NOT (request_id <> '') THEN 'request_id must be text that is not empty'
        WHEN NOT (ttft_ns BETWEEN 0 AND 36028797018963967)
        THEN 'ttft_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (tpot_mean_ns BETWEEN 0 AND 36028797018963967)
        THEN 'tpot_mean_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (tpot_max_ns BETWEEN 0 AND 36028797018963967)
        THEN 'tpot_max_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (e2e_ns BETWEEN 0 AND 36028797018963967)
        THEN 'e2e_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (ttft_budget_ns BETWEEN 0 AND 36028797018963967)
        THEN 'ttft_budget_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (tpot_budget_ns BETWEEN 0 AND 36028797018963967)
        THEN 'tpot_budget_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (send_delay_ns BETWEEN 0 AND 36028797018963967)
        THEN 'send_delay_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (serving_ns BETWEEN 0 AND 36028797018963967)
        THEN 'serving_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (rollout_ns BETWEEN 0 AND 36028797018963967)
        THEN 'rollout_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (train_ns BETWEEN 0 AND 36028797018963967)
        THEN 'train_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (sync_ns BETWEEN 0 AND 36028797018963967)
        THEN 'sync_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (activation_ns BETWEEN 0 AND 36028797018963967)
        THEN 'activation_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (headroom_ns BETWEEN 0 AND 36028797018963967)
        THEN 'headroom_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (idle_ns BETWEEN 0 AND 36028797018963967)
        THEN 'idle_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (overlap_ns BETWEEN 0 AND 36028797018963967)
        THEN 'overlap_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (rollout_run_id <> '') THEN 'rollout_run_id must be text that is not empty'
        WHEN NOT (train_run_id <> '') THEN 'train_run_id must be text that is not empty'
        WHEN NOT (groups BETWEEN 0 AND 36028797018963967) THEN 'groups must be an integer from 0 to 36028797018963967'
        WHEN NOT (trajectories BETWEEN 0 AND 36028797018963967)
        THEN 'trajectories must be an integer from 0 to 36028797018963967'
        WHEN NOT (trajectories_accepted BETWEEN 0 AND 36028797018963967)
        THEN 'trajectories_accepted must be an integer from 0 to 36028797018963967'
        WHEN NOT (isfinite(reward_mean)) THEN 'reward_mean must be a finite number'
        WHEN NOT (isfinite(loss)) THEN 'loss must be a finite number'
        WHEN NOT (isfinite(entropy)) THEN 'entropy must be a finite number'
        WHEN NOT (isfinite(kl)) THEN 'kl must be a finite number'
        WHEN NOT (isfinite(grad_norm)) THEN 'grad_norm must be a finite number'
        WHEN NOT (tokens_trained BETWEEN 0 AND 36028797018963967)
        THEN 'tokens_trained must be an integer from 0 to 36028797018963967'
        WHEN NOT (power_mw BETWEEN 0 AND 36028797018963967)
        THEN 'power_mw must be an integer from 0 to 36028797018963967'
        WHEN NOT (energy_mj BETWEEN 0 AND 36028797018963967)
        THEN 'energy_mj must be an integer from 0 to 36028797018963967'
        WHEN NOT (package_energy_mj BETWEEN 0 AND 36028797018963967)
        THEN 'package_energy_mj must be an integer from 0 to 36028797018963967'
        WHEN NOT (busy_share BETWEEN 0 AND 1) THEN 'busy_share must be a number from 0 to 1'
        WHEN NOT (memory_used_bytes BETWEEN 0 AND 36028797018963967)
        THEN 'memory_used_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (sm_clock_mhz BETWEEN 0 AND 36028797018963967)
        THEN 'sm_clock_mhz must be an integer from 0 to 36028797018963967'
        WHEN NOT (mig_instances BETWEEN 0 AND 36028797018963967)
        THEN 'mig_instances must be an integer from 0 to 36028797018963967'
        WHEN NOT (offset_ns BETWEEN -4611686018427387903 AND 4611686018427387903)
        THEN 'offset_ns must be an integer from -4611686018427387903 to 4611686018427387903 nanoseconds'
        WHEN NOT (device_time_offset_ns BETWEEN -4611686018427387903 AND 4611686018427387903)
        THEN 'device_time_offset_ns must be an integer from -4611686018427387903 to 4611686018427387903 nanoseconds'
        WHEN NOT (host <> '') THEN 'host must be text that is not empty'
        WHEN NOT (who <> '') THEN 'who must be text that is not empty'
        WHEN NOT (result_rows BETWEEN 0 AND 36028797018963967)
        THEN 'result_rows must be an integer from 0 to 36028797018963967'
        ELSE CASE kind
        WHEN 'run' THEN CASE
        WHEN NOT (coalesce(action, '') IN ('started', 'ended', 'failed'))
        THEN 'action must be one of started, ended, failed'
        WHEN NOT (name IS NOT NULL) THEN 'name must be text' END
        WHEN 'device' THEN CASE
        WHEN NOT (device_id IS NOT NULL) THEN 'device_id must be text that is not empty'
        WHEN NOT (coalesce(action, '') IN ('joined', 'left')) THEN 'action must be one of joined, left'
        WHEN NOT (t_ns IS NOT NULL)
        THEN 't_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (coalesce(pool, '') IN ('serving', 'rollout', 'train'))
        THEN 'pool must be one of serving, rollout, train'
        WHEN NOT (device_class IS NOT NULL) THEN 'device_class must be text' END
        WHEN 'engine' THEN CASE
        WHEN NOT (coalesce(action, '') IN ('started', 'activated', 'deactivated', 'stopped', 'died', 'attached',
        'detached', 'refused'))
        THEN 'action must be one of started, activated, deactivated, stopped, died, attached, detached, refused'
        WHEN NOT (coalesce(role, '') IN ('serving', 'rollout')) THEN 'role must be one of serving, rollout'
        WHEN NOT (model IS NOT NULL) THEN 'model must be text' END
        WHEN 'lease' THEN CASE
        WHEN NOT (lease_id IS NOT NULL) THEN 'lease_id must be text that is not empty'
        WHEN NOT (coalesce(action, '') IN ('granted', 'renewed', 'throttled', 'restored', 'resized', 'frozen',
        'released', 'preempted', 'expired'))
        THEN 'action must be one of granted, renewed, throttled, restored, resized, frozen, released, preempted, expired'
        WHEN NOT (kv_budget_bytes IS NOT NULL)
        THEN 'kv_budget_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (compute_share IS NOT NULL) THEN 'compute_share must be a number from 0 to 1'
        WHEN NOT (expires_at_us IS NOT NULL)
        THEN 'expires_at_us must be an integer from 0 to 4611686018427387, UTC microseconds from 1970 to 2116' END
        WHEN 'preemption' THEN CASE
        WHEN NOT (coalesce(action, '') IN ('yield', 'cut', 'revoke')) THEN 'action must be one of yield, cut, revoke'
        WHEN NOT (reason IS NOT NULL) THEN 'reason must be text' END
        WHEN 'hold' THEN CASE
        WHEN NOT (reason IS NOT NULL) THEN 'reason must be text'
        WHEN NOT (count IS NOT NULL) THEN 'count must be an integer from 0 to 36028797018963967'
        WHEN NOT (duration_ns IS NOT NULL) THEN 'duration_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        END
        WHEN 'holdout' THEN CASE
        WHEN NOT (device_id IS NOT NULL) THEN 'device_id must be text that is not empty'
        WHEN NOT (t0_ns IS NOT NULL)
        THEN 't0_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (t1_ns IS NOT NULL)
        THEN 't1_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (withheld IS NOT NULL) THEN 'withheld must be true or false'
        WHEN NOT (draw IS NOT NULL) THEN 'draw must be a number from 0 to 1'
        WHEN NOT (holdout_share IS NOT NULL) THEN 'holdout_share must be a number from 0 to 1'
        WHEN NOT (holdout_seed IS NOT NULL) THEN 'holdout_seed must be an integer from 0 to 36028797018963967'
        WHEN NOT (window_ns IS NOT NULL) THEN 'window_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (washout_ns IS NOT NULL) THEN 'washout_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (t0_ns::HUGEINT <= t1_ns::HUGEINT) THEN 't1_ns must be at or after t0_ns'
        WHEN NOT (t1_ns::HUGEINT - t0_ns::HUGEINT <= 36028797018963967)
        THEN 't1_ns must be at most 36028797018963967 ns after t0_ns' END
        WHEN 'step_time' THEN CASE
        WHEN NOT (coalesce(role, '') IN ('serving', 'rollout')) THEN 'role must be one of serving, rollout'
        WHEN NOT (coalesce(mode, '') IN ('prefill', 'decode')) THEN 'mode must be one of prefill, decode'
        WHEN NOT (steps IS NOT NULL) THEN 'steps must be an integer from 0 to 36028797018963967'
        WHEN NOT (error_share IS NOT NULL) THEN 'error_share must be a finite number' END
        WHEN 'sync' THEN CASE
        WHEN NOT (ok IS NOT NULL) THEN 'ok must be true or false'
        WHEN NOT (coalesce(encoding, '') IN ('delta', 'dense')) THEN 'encoding must be one of delta, dense'
        WHEN NOT (wire_bytes IS NOT NULL) THEN 'wire_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (dense_bytes IS NOT NULL) THEN 'dense_bytes must be an integer from 0 to 36028797018963967 bytes'
        WHEN NOT (total_ns IS NOT NULL) THEN 'total_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (source IS NOT NULL) THEN 'source must be text'
        WHEN NOT (route IS NOT NULL) THEN 'route must be text' END
        WHEN 'turn' THEN CASE
        WHEN NOT (turn IS NOT NULL) THEN 'turn must be an integer from 0 to 36028797018963967'
        WHEN NOT (attempt IS NOT NULL) THEN 'attempt must be an integer from 0 to 36028797018963967'
        WHEN NOT (coalesce(outcome, '') IN ('completed', 'preempted', 'failed'))
        THEN 'outcome must be one of completed, preempted, failed'
        WHEN NOT (placement IS NOT NULL) THEN 'placement must be text'
        WHEN NOT (prompt_tokens IS NOT NULL) THEN 'prompt_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (cached_tokens IS NOT NULL) THEN 'cached_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (output_tokens IS NOT NULL) THEN 'output_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (queue_ns IS NOT NULL) THEN 'queue_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (duration_ns IS NOT NULL) THEN 'duration_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        END
        WHEN 'trajectory' THEN CASE
        WHEN NOT (group_id IS NOT NULL) THEN 'group_id must be text that is not empty'
        WHEN NOT (step IS NOT NULL) THEN 'step must be an integer from 0 to 36028797018963967'
        WHEN NOT (task IS NOT NULL) THEN 'task must be text'
        WHEN NOT (coalesce(outcome, '') IN ('finished', 'truncated', 'lost'))
        THEN 'outcome must be one of finished, truncated, lost'
        WHEN NOT (turns IS NOT NULL) THEN 'turns must be an integer from 0 to 36028797018963967'
        WHEN NOT (prompt_tokens IS NOT NULL) THEN 'prompt_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (output_tokens IS NOT NULL) THEN 'output_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (staleness IS NOT NULL)
        THEN 'staleness must be an integer from -36028797018963967 to 36028797018963967'
        WHEN NOT (duration_ns IS NOT NULL) THEN 'duration_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        END
        WHEN 'verdict' THEN CASE
        WHEN NOT (group_id IS NOT NULL) THEN 'group_id must be text that is not empty'
        WHEN NOT (step IS NOT NULL) THEN 'step must be an integer from 0 to 36028797018963967'
        WHEN NOT (verifier IS NOT NULL) THEN 'verifier must be text'
        WHEN NOT (reward IS NOT NULL) THEN 'reward must be a finite number'
        WHEN NOT (threshold IS NOT NULL) THEN 'threshold must be a finite number'
        WHEN NOT (accepted IS NOT NULL) THEN 'accepted must be true or false'
        WHEN NOT (stale IS NOT NULL) THEN 'stale must be true or false' END
        WHEN 'request' THEN CASE
        WHEN NOT (request_id IS NOT NULL) THEN 'request_id must be text that is not empty'
        WHEN NOT (coalesce(outcome, '') IN ('completed', 'failed')) THEN 'outcome must be one of completed, failed'
        WHEN NOT (prompt_tokens IS NOT NULL) THEN 'prompt_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (output_tokens IS NOT NULL) THEN 'output_tokens must be an integer from 0 to 36028797018963967'
        WHEN NOT (e2e_ns IS NOT NULL) THEN 'e2e_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (ttft_budget_ns IS NOT NULL)
        THEN 'ttft_budget_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (tpot_budget_ns IS NOT NULL)
        THEN 'tpot_budget_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (send_delay_ns IS NOT NULL)
        THEN 'send_delay_ns must be an integer from 0 to 36028797018963967 nanoseconds' END
        WHEN 'device_slice' THEN CASE
        WHEN NOT (device_id IS NOT NULL) THEN 'device_id must be text that is not empty'
        WHEN NOT (t0_ns IS NOT NULL)
        THEN 't0_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (t1_ns IS NOT NULL)
        THEN 't1_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (serving_ns IS NOT NULL) THEN 'serving_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (rollout_ns IS NOT NULL) THEN 'rollout_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (train_ns IS NOT NULL) THEN 'train_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (sync_ns IS NOT NULL) THEN 'sync_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (activation_ns IS NOT NULL)
        THEN 'activation_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (headroom_ns IS NOT NULL) THEN 'headroom_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (idle_ns IS NOT NULL) THEN 'idle_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (overlap_ns IS NOT NULL) THEN 'overlap_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (t0_ns::HUGEINT <= t1_ns::HUGEINT) THEN 't1_ns must be at or after t0_ns'
        WHEN NOT (t1_ns::HUGEINT - t0_ns::HUGEINT <= 36028797018963967)
        THEN 't1_ns must be at most 36028797018963967 ns after t0_ns'
        WHEN NOT (serving_ns::HUGEINT + rollout_ns::HUGEINT + train_ns::HUGEINT + sync_ns::HUGEINT +
            activation_ns::HUGEINT + headroom_ns::HUGEINT + idle_ns::HUGEINT = t1_ns::HUGEINT - t0_ns::HUGEINT)
        THEN 't1_ns must be t0_ns and the sum of the seven buckets' END
        WHEN 'step' THEN CASE
        WHEN NOT (step IS NOT NULL) THEN 'step must be an integer from 0 to 36028797018963967'
        WHEN NOT (groups IS NOT NULL) THEN 'groups must be an integer from 0 to 36028797018963967'
        WHEN NOT (trajectories IS NOT NULL) THEN 'trajectories must be an integer from 0 to 36028797018963967'
        WHEN NOT (trajectories_accepted IS NOT NULL)
        THEN 'trajectories_accepted must be an integer from 0 to 36028797018963967'
        WHEN NOT (reward_mean IS NOT NULL) THEN 'reward_mean must be a finite number'
        WHEN NOT (tokens_trained IS NOT NULL) THEN 'tokens_trained must be an integer from 0 to 36028797018963967'
        WHEN NOT (rollout_ns IS NOT NULL) THEN 'rollout_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (train_ns IS NOT NULL) THEN 'train_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (sync_ns IS NOT NULL) THEN 'sync_ns must be an integer from 0 to 36028797018963967 nanoseconds'
        WHEN NOT (total_ns IS NOT NULL) THEN 'total_ns must be an integer from 0 to 36028797018963967 nanoseconds' END
        WHEN 'power' THEN CASE
        WHEN NOT (t0_ns IS NOT NULL)
        THEN 't0_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (t1_ns IS NOT NULL)
        THEN 't1_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (coalesce(source, '') IN ('nvml-energy', 'nvml-power', 'rapl', 'other', 'not measured'))
        THEN 'source must be one of nvml-energy, nvml-power, rapl, other, not measured'
        WHEN NOT (t0_ns::HUGEINT <= t1_ns::HUGEINT) THEN 't1_ns must be at or after t0_ns'
        WHEN NOT (t1_ns::HUGEINT - t0_ns::HUGEINT <= 36028797018963967)
        THEN 't1_ns must be at most 36028797018963967 ns after t0_ns'
        WHEN NOT ((power_mw IS NULL) = (source = 'not measured'))
        THEN 'power_mw must be empty just where source is ''not measured''' END
        WHEN 'scale_down' THEN CASE
        WHEN NOT (device_id IS NOT NULL) THEN 'device_id must be text that is not empty'
        WHEN NOT (coalesce(decision, '') IN ('kept', 'let_go')) THEN 'decision must be one of kept, let_go'
        WHEN NOT (t0_ns IS NOT NULL)
        THEN 't0_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (t1_ns IS NOT NULL)
        THEN 't1_ns must be an integer from 0 to 4611686018427387903, UTC nanoseconds from 1970 to 2116'
        WHEN NOT (device_class IS NOT NULL) THEN 'device_class must be text'
        WHEN NOT (decided_by IS NOT NULL) THEN 'decided_by must be text'
        WHEN NOT (t0_ns::HUGEINT <= t1_ns::HUGEINT) THEN 't1_ns must be at or after t0_ns'
        WHEN NOT (t1_ns::HUGEINT - t0_ns::HUGEINT <= 36028797018963967)
        THEN 't1_ns must be at most 36028797018963967 ns after t0_ns' END
        WHEN 'clock' THEN CASE
        WHEN NOT (device_id IS NOT NULL) THEN 'device_id must be text that is not empty'
        WHEN NOT (coalesce(action, '') IN ('heard', 'set', 'moved')) THEN 'action must be one of heard, set, moved'
        WHEN NOT (offset_ns IS NOT NULL)
        THEN 'offset_ns must be an integer from -4611686018427387903 to 4611686018427387903 nanoseconds' END
        WHEN 'ledger' THEN CASE
        WHEN NOT (action IS NOT NULL) THEN 'action must be text' END
        WHEN 'access' THEN CASE
        WHEN NOT (who IS NOT NULL) THEN 'who must be text that is not empty'
        WHEN NOT (coalesce(action, '') IN ('query', 'info', 'export', 'verify', 'report', 'receipt', 'token_denied',
        'read_denied', 'append_denied', 'admin_denied'))
        THEN 'action must be one of query, info, export, verify, report, receipt, token_denied, read_denied, append_denied, admin_denied'
        WHEN NOT (coalesce(outcome, '') IN ('ok', 'refused', 'failed', 'timeout'))
        THEN 'outcome must be one of ok, refused, failed, timeout' END END
        END AS fault
    FROM stored_event
),
-- The time a retry was made at is not its content.
named AS (
    SELECT
        *,
        hash(*COLUMNS(* EXCLUDE (writer, seq, at_us, place))) AS content,
        row_number() OVER (PARTITION BY run_id, kind, event_id ORDER BY place, writer, seq) AS n
    FROM stored_event
    LEFT JOIN writer_order USING (writer)
    WHERE event_id IS NOT NULL
),
contradicting AS (
    SELECT *, first_value(content) OVER (PARTITION BY run_id, kind, event_id ORDER BY n) AS first_content
    FROM named
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
        *, 'event_id must be that of one event, and the first with it has other content' AS fault, event_id AS value
    FROM contradicting
    WHERE content <> first_content
    UNION ALL BY NAME
    SELECT
        * EXCLUDE (t0_ns, event_time),
        't0_ns must be at or after the end of the slice before it, ' || covered_to_ns AS fault,
        t0_ns::VARCHAR AS value
    FROM slice
    WHERE t0_ns < covered_to_ns
);
