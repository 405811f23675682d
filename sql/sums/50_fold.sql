-- Add the new events to what is kept: all but runs, devices, slices, and what crosses an hour.
INSERT INTO granted
SELECT unit, lease_id, at_us FROM new_other WHERE kind = 'lease' AND action = 'granted';
CREATE OR REPLACE TEMP TABLE new_token AS
SELECT
    m.number, t.unit, t.hour, t.lease_id, t.rl_run_id, t.policy_version, t.outcome = 'failed' AS failed,
    sum(t.output_tokens)::BIGINT AS tokens
FROM new_turn AS t
JOIN moved AS m USING (run_id, provenance, trajectory_id)
GROUP BY ALL;
INSERT INTO token FROM new_token;
INSERT INTO own_token FROM new_token;
CREATE OR REPLACE TEMP TABLE new_attempt AS
SELECT
    m.number, t.turn, t.attempt, t.outcome, t.unit, t.hour, t.lease_id, t.rl_run_id, t.policy_version, t.uncached_tokens
FROM new_turn AS t
JOIN moved AS m USING (run_id, provenance, trajectory_id)
WHERE t.attempt > 0 OR t.outcome = 'preempted';
INSERT INTO attempt FROM new_attempt;
INSERT INTO own_attempt FROM new_attempt;
CREATE OR REPLACE TEMP TABLE new_ended AS
SELECT m.number, n.outcome, n.task, n.at_us, n.writer, n.seq
FROM new_other AS n
JOIN moved AS m USING (run_id, provenance, trajectory_id)
WHERE n.kind = 'trajectory';
INSERT INTO ended FROM new_ended;
INSERT INTO own_ended FROM new_ended;
CREATE OR REPLACE TEMP TABLE new_judged AS
SELECT m.number, n.accepted, n.stale, n.at_us, n.writer, n.seq
FROM new_other AS n
JOIN moved AS m USING (run_id, provenance, trajectory_id)
WHERE n.kind = 'verdict';
INSERT INTO judged FROM new_judged;
INSERT INTO own_judged FROM new_judged;
INSERT INTO made
SELECT unit, at_us // 3600000000, lease_id, rl_run_id, NULL, NULL, 'lost', 'preempted', true,
       sum(tokens_lost)
FROM new_other
WHERE kind = 'preemption' AND tokens_lost > 0
GROUP BY ALL;
INSERT INTO sent
SELECT unit, at_us // 3600000000, lease_id, rl_run_id, route, policy_version, at_us, wire_bytes, writer, seq
FROM new_other
WHERE kind = 'sync';
