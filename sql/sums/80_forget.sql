-- Forget the charges of the hours in `touched`: they are worked out again, with those of others who held the device
-- then.
CREATE OR REPLACE TEMP TABLE hours AS SELECT DISTINCT * FROM touched;
INSERT INTO grown SELECT (SELECT coalesce(max(portion), 0) + 1 FROM grown), * FROM hours;
-- When a run begins or ends, or a device joins or leaves, more may change than hours say.
CREATE OR REPLACE TEMP TABLE renewed AS
FROM unit SEMI JOIN (FROM new_other WHERE kind IN ('run', 'device')) USING (run_id);
CREATE OR REPLACE TEMP TABLE forgotten AS
WITH own AS (
    FROM hours
    UNION
    SELECT unit, hour FROM priced SEMI JOIN renewed USING (unit)
)
SELECT unit, hour
FROM priced
JOIN hardware USING (unit)
SEMI JOIN (SELECT hardware, hour FROM own JOIN hardware USING (unit)) USING (hardware, hour);
DELETE FROM priced USING forgotten AS f WHERE priced.unit = f.unit AND priced.hour = f.hour;
DELETE FROM charge USING forgotten AS f WHERE charge.unit = f.unit AND charge.hour = f.hour;
