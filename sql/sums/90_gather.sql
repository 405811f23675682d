-- Sum up what was added in portions to the hours in `grown`, once they were added to often enough for it to be felt.
CREATE OR REPLACE TEMP TABLE hours AS SELECT DISTINCT unit, hour FROM grown;
CREATE OR REPLACE TEMP TABLE again AS
SELECT
    unit, hour, lease_id, rl_run_id, writer, min(first_seq), max(last_seq),
    sum(serving_ns), sum(rollout_ns), sum(train_ns), sum(sync_ns), sum(activation_ns), sum(headroom_ns), sum(idle_ns)
FROM slice
SEMI JOIN hours USING (unit, hour)
GROUP BY unit, hour, lease_id, rl_run_id, writer;
DELETE FROM slice USING hours AS h WHERE slice.unit = h.unit AND slice.hour = h.hour;
INSERT INTO slice FROM again;
CREATE OR REPLACE TEMP TABLE again AS
SELECT * EXCLUDE (tokens), sum(tokens)
FROM made
SEMI JOIN hours USING (unit, hour)
GROUP BY ALL
HAVING sum(tokens) <> 0;
DELETE FROM made USING hours AS h WHERE made.unit = h.unit AND made.hour = h.hour;
INSERT INTO made FROM again;
CREATE OR REPLACE TEMP TABLE again AS
SELECT unit, hour, writer, min(first_seq), max(last_seq), sum(ns), sum(energy_mw_ns)
FROM metered
SEMI JOIN hours USING (unit, hour)
GROUP BY unit, hour, writer;
DELETE FROM metered USING hours AS h WHERE metered.unit = h.unit AND metered.hour = h.hour;
INSERT INTO metered FROM again;
CREATE OR REPLACE TEMP TABLE again AS
SELECT kind, unit, t_ns, sum(delta) FROM edge GROUP BY ALL HAVING sum(delta) <> 0;
DELETE FROM edge;
INSERT INTO edge FROM again;
DELETE FROM grown;
