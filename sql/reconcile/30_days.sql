-- What an invoice charges on each day of the period [from_day, to_day), `invoice_day`, by what it is a charge of, a
-- `thing`: of rows that lie within a day. `long_row` are the others; 35_days cuts them.
CREATE OR REPLACE TEMP MACRO whole(number) AS (number::DECIMAL(28, 12) * 1000000000000::DECIMAL(13, 0))::HUGEINT;
CREATE OR REPLACE TEMP MACRO upto(pico, until, begins, ends) AS
    CASE
        WHEN until <= begins THEN 0::HUGEINT
        WHEN until >= ends THEN pico
        ELSE pico * (epoch_ms(until) - epoch_ms(begins)) // (epoch_ms(ends) - epoch_ms(begins))
    END;
CREATE OR REPLACE TEMP MACRO part(pico, day, begins, ends) AS
    upto(pico, least(day + INTERVAL 1 DAY, getvariable('to_day')), begins, ends)
        - upto(pico, greatest(day, getvariable('from_day')), begins, ends);
-- Nanoseconds in a unit of time of whole things: not GB-Hours, and not 100 Hours.
CREATE OR REPLACE TEMP MACRO ns_in(unit) AS
    CASE
        WHEN regexp_matches(unit, '(^|[^a-z])(bytes?|[kmgtp]i?b|i?ops|requests?|tokens?)[ -]', 'i') THEN NULL
        WHEN regexp_full_match(unit, '([a-z][a-z0-9 ]*-)?(hours?|hrs?)', 'i') THEN 3600000000000
        WHEN regexp_full_match(unit, '([a-z][a-z0-9 ]*-)?minutes?', 'i') THEN 60000000000
        WHEN regexp_full_match(unit, '([a-z][a-z0-9 ]*-)?seconds?', 'i') THEN 1000000000
        WHEN regexp_full_match(unit, '([a-z][a-z0-9 ]*-)?days?', 'i') THEN 86400000000000
    END;
CREATE OR REPLACE TEMP MACRO item_of(unit, of_network) AS
    CASE
        WHEN unit IS NULL OR ns_in(unit) IS NOT NULL THEN 'device time'
        WHEN regexp_full_match(unit, '[km]?wh', 'i') THEN 'energy'
        WHEN of_network AND regexp_full_match(unit, 'bytes?|[kmgtp]i?b', 'i') THEN 'transfer'
        ELSE 'other'
    END;
-- A purchase that its usage carries the cost of has no effective cost: it is no charge of a device.
CREATE OR REPLACE TEMP MACRO is_compared(category, effective) AS
    category = 'Usage' OR (category = 'Purchase' AND effective <> 0);
CREATE OR REPLACE TEMP VIEW inside AS
SELECT
    * EXCLUDE (fingerprint, fault, of_network), item_of(unit, of_network) AS item,
    is_compared(category, effective) AS compared,
    whole(billed) AS billed_pico, whole(effective) AS effective_pico,
    whole(quantity) * ns_in(unit) // 1000000000000 AS ns,
    row IN (SELECT row FROM again) AS repeated
FROM invoice_row
WHERE begins < getvariable('to_day') AND ends > getvariable('from_day');
-- Numbered, since there may be a million of them, on each of which hangs every day.
CREATE OR REPLACE TABLE thing AS
SELECT row_number() OVER () AS thing, *
FROM (SELECT DISTINCT resource, resource_type, sku, tagged, category, item, compared FROM inside);
CREATE OR REPLACE TEMP VIEW numbered AS
SELECT t.thing, i.begins, i.ends, i.billed_pico, i.effective_pico, i.ns, i.repeated, i.correction
FROM inside AS i
JOIN thing AS t USING (resource, resource_type, sku, tagged, category, item, compared);
CREATE OR REPLACE TABLE invoice_day AS
SELECT
    thing, date_trunc('day', begins) AS day, sum(billed_pico) AS billed_pico, sum(effective_pico) AS effective_pico,
    -- Unknown for all where it is for one: hours of a part are not the hours of the whole.
    CASE WHEN count(*) = count(ns) THEN sum(ns) END AS ns,
    coalesce(sum(effective_pico) FILTER (repeated), 0) AS again_pico,
    coalesce(sum(effective_pico) FILTER (correction), 0) AS corrections_pico
FROM numbered
WHERE ends <= date_trunc('day', begins) + INTERVAL 1 DAY
GROUP BY thing, day;
CREATE OR REPLACE TABLE long_row AS
FROM numbered WHERE ends > date_trunc('day', begins) + INTERVAL 1 DAY;
