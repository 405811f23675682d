-- Forget the charges of the hours in `touched`: they are worked out again.
CREATE OR REPLACE TEMP TABLE hours AS SELECT DISTINCT * FROM touched;
INSERT INTO grown SELECT (SELECT coalesce(max(portion), 0) + 1 FROM grown), * FROM hours;
DELETE FROM priced USING hours AS h
WHERE priced.run_id = h.run_id AND priced.provenance = h.provenance AND priced.device_id = h.device_id
  AND priced.hour = h.hour;
DELETE FROM charge USING hours AS h
WHERE charge.run_id = h.run_id AND charge.provenance = h.provenance AND charge.device_id = h.device_id
  AND charge.hour = h.hour;
-- When a run begins or ends, or a device joins or leaves, more may change than hours say.
DELETE FROM priced WHERE run_id IN (SELECT run_id FROM new_other WHERE kind IN ('run', 'device'));
DELETE FROM charge WHERE run_id IN (SELECT run_id FROM new_other WHERE kind IN ('run', 'device'));
