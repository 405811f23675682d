-- The new events but slices, read once for all that is made of them: turns, and the rest of what is not kept as it is.
INSERT INTO unit
SELECT
    (SELECT coalesce(max(unit), 0) FROM unit) + row_number() OVER (), run_id, provenance, device_id,
    coalesce(since_ns, 0), coalesce(until_ns, 9223372036854775807)
FROM (
    SELECT DISTINCT if(kind = 'turn', coalesce(fleet_run_id, run_id), run_id) AS run_id, provenance,
        coalesce(device_id, '') AS device_id
    FROM new_event
)
ANTI JOIN unit USING (run_id, provenance, device_id)
LEFT JOIN spell USING (run_id, provenance, device_id);
CREATE OR REPLACE TEMP VIEW of_unit AS
SELECT e.* REPLACE (nullif(if(kind = 'turn', e.run_id, rl_run_id), u.run_id) AS rl_run_id), u.unit
FROM new_event AS e
JOIN unit AS u
    -- A turn is of an RL run, and its device perhaps of a fleet that several of them share.
    ON if(kind = 'turn', coalesce(e.fleet_run_id, e.run_id), e.run_id) = u.run_id AND e.provenance = u.provenance
    AND coalesce(e.device_id, '') = u.device_id
    AND coalesce(e.t0_ns, 1000 * e.at_us) >= u.since_ns AND coalesce(e.t0_ns, 1000 * e.at_us) < u.until_ns;
CREATE OR REPLACE TEMP TABLE new_turn AS
SELECT
    run_id, provenance, coalesce(trajectory_id, '') AS trajectory_id, unit, at_us // 3600000000 AS hour, lease_id,
    rl_run_id, policy_version, turn, attempt, outcome, prompt_tokens - cached_tokens AS uncached_tokens, output_tokens
FROM of_unit
WHERE kind = 'turn' AND reckonable('turn');
CREATE OR REPLACE TEMP TABLE new_other AS
SELECT
    kind, run_id, provenance, trajectory_id, unit, lease_id, rl_run_id, writer, seq, at_us, action, tokens_lost, route,
    policy_version, wire_bytes, t0_ns, t1_ns, power_mw, outcome, task, accepted, stale
FROM of_unit
-- A device that was not measured is charged no energy, and nothing was read of it twice. Of leases only the grant says
-- what a sync was for, and a preemption that lost no token changes nothing.
WHERE kind NOT IN ('device_slice', 'turn')
  AND (kind <> 'power' OR t1_ns > t0_ns AND power_mw IS NOT NULL)
  AND (kind <> 'lease' OR action = 'granted')
  AND (kind <> 'preemption' OR tokens_lost > 0)
  AND CASE kind
      WHEN 'run' THEN reckonable('run')
      WHEN 'device' THEN reckonable('device')
      WHEN 'lease' THEN reckonable('lease')
      WHEN 'preemption' THEN reckonable('preemption')
      WHEN 'trajectory' THEN reckonable('trajectory')
      WHEN 'verdict' THEN reckonable('verdict')
      WHEN 'sync' THEN reckonable('sync')
      WHEN 'power' THEN reckonable('power')
  END;
-- Trajectories of which something new is known.
CREATE OR REPLACE TEMP TABLE moved AS
WITH named AS (
    SELECT DISTINCT run_id, provenance, trajectory_id FROM new_turn
    UNION
    SELECT DISTINCT run_id, provenance, trajectory_id FROM new_other WHERE kind IN ('trajectory', 'verdict')
)
SELECT
    n.*, t.number IS NULL AS first_heard_of,
    coalesce(
        t.number,
        (SELECT coalesce(max(number), 0) FROM trajectory) + row_number() OVER (PARTITION BY t.number IS NULL)
    ) AS number
FROM named AS n
LEFT JOIN trajectory AS t USING (run_id, provenance, trajectory_id);
INSERT INTO trajectory SELECT number, run_id, provenance, trajectory_id FROM moved WHERE first_heard_of;
-- Earlier tokens and attempts of the moved trajectories; new events join them.
CREATE OR REPLACE TEMP TABLE own_token AS FROM token SEMI JOIN moved USING (number);
CREATE OR REPLACE TEMP TABLE own_attempt AS FROM attempt SEMI JOIN moved USING (number);
CREATE OR REPLACE TEMP TABLE own_ended AS FROM ended SEMI JOIN moved USING (number);
CREATE OR REPLACE TEMP TABLE own_judged AS FROM judged SEMI JOIN moved USING (number);
