-- Forget the charges of the hours in `touched`: they are worked out again.
CREATE OR REPLACE TEMP TABLE hours AS SELECT DISTINCT * FROM touched;
INSERT INTO grown SELECT (SELECT coalesce(max(portion), 0) + 1 FROM grown), * FROM hours;
DELETE FROM priced USING hours AS h WHERE priced.unit = h.unit AND priced.hour = h.hour;
DELETE FROM charge USING hours AS h WHERE charge.unit = h.unit AND charge.hour = h.hour;
-- When a run begins or ends, or a device joins or leaves, more may change than hours say.
CREATE OR REPLACE TEMP TABLE renewed AS
FROM unit SEMI JOIN (FROM new_other WHERE kind IN ('run', 'device')) USING (run_id);
DELETE FROM priced WHERE unit IN (SELECT unit FROM renewed);
DELETE FROM charge WHERE unit IN (SELECT unit FROM renewed);
