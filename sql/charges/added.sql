-- The new slices and turns, read once for all that is made of them.
CREATE OR REPLACE TEMP TABLE new_slice AS
SELECT
    run_id, provenance, device_id, lease_id, writer, seq, t0_ns, t1_ns,
    serving_ns, rollout_ns, train_ns, sync_ns, activation_ns, headroom_ns, idle_ns
FROM new_event
WHERE kind = 'device_slice' AND t1_ns > t0_ns;
CREATE OR REPLACE TEMP TABLE new_turn AS
SELECT
    run_id, provenance, coalesce(trajectory_id, '') AS trajectory_id, device_id, lease_id, policy_version, at_us, turn, attempt, outcome,
    prompt_tokens, cached_tokens, output_tokens
FROM new_event
WHERE kind = 'turn';
-- Trajectories of which something new is known.
CREATE OR REPLACE TEMP TABLE moved AS
SELECT DISTINCT run_id, provenance, trajectory_id FROM new_turn
UNION
SELECT DISTINCT run_id, provenance, trajectory_id FROM new_event WHERE kind IN ('trajectory', 'verdict');
-- What was known of those before; what is new joins it.
CREATE OR REPLACE TEMP TABLE own_token AS FROM token SEMI JOIN moved USING (run_id, provenance, trajectory_id);
CREATE OR REPLACE TEMP TABLE own_attempt AS FROM attempt SEMI JOIN moved USING (run_id, provenance, trajectory_id);
CREATE OR REPLACE TEMP TABLE own_ended AS FROM ended SEMI JOIN moved USING (run_id, provenance, trajectory_id);
CREATE OR REPLACE TEMP TABLE own_judged AS FROM judged SEMI JOIN moved USING (run_id, provenance, trajectory_id);
-- Where slices ended before, of devices that have new ones: that hour's provisioned time grows.
CREATE OR REPLACE TEMP TABLE touched AS
SELECT run_id, provenance, device_id, (max(t_ns) - 1) // 3600000000000 AS hour
FROM edge
SEMI JOIN new_slice USING (run_id, provenance, device_id)
GROUP BY ALL;
