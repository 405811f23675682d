-- Whole nano-dollars, and whole 1e-12 of anything, as DECIMAL(38, 12), and dollars back to nano-dollars; an instant
-- as FOCUS writes it; a quotient of whole numbers, rounded half away from zero.
CREATE OR REPLACE TEMP MACRO usd_nano(nano) AS
    (nano::DECIMAL(26, 0) * 0.000000001::DECIMAL(12, 12))::DECIMAL(38, 12);
CREATE OR REPLACE TEMP MACRO pico(units) AS (units::DECIMAL(26, 0) * 0.000000000001::DECIMAL(12, 12));
CREATE OR REPLACE TEMP MACRO instant(moment) AS strftime(moment, '%Y-%m-%dT%H:%M:%SZ');
CREATE OR REPLACE TEMP MACRO nano(usd) AS (usd::DECIMAL(28, 12) * 1000000000::DECIMAL(10, 0))::HUGEINT;
CREATE OR REPLACE TEMP MACRO rounded(n, d) AS sign(n) * ((2 * abs(n::HUGEINT) + d) // (2 * d));
