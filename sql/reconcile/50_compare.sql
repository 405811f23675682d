-- The ledger beside the invoice, by what is charged, item and day: `cell`. A device that the invoice does not name is
-- part of the group or the class that it does name. Amounts are whole nano-units of the ledger's currency, of which a
-- unit of the invoice's is `rate_numerator` / `rate_denominator`.
CREATE OR REPLACE TABLE grouped AS
WITH device AS (SELECT DISTINCT hardware_id, device_id, device_class, item FROM ledger_day),
pattern AS (SELECT DISTINCT target, by_name FROM vendor_resource WHERE kind = 'devices'),
named AS (SELECT DISTINCT kind, name, item FROM matched),
-- What is named for the item goes before what is named for another: a device may be billed by itself and its transfer
-- for all.
found AS (
    SELECT d.*, 'device' AS kind, o.name, o.item AS named_item, 1 AS place
    FROM device AS d
    JOIN named AS o ON o.kind = 'device' AND o.name = d.hardware_id
    UNION ALL
    SELECT d.*, 'devices', g.name, g.item, 2
    FROM device AS d
    JOIN pattern AS p ON CASE WHEN p.by_name THEN d.device_id ELSE d.hardware_id END GLOB p.target
    JOIN named AS g ON g.kind = 'devices' AND g.name = p.target
    UNION ALL
    SELECT d.*, 'class', c.name, c.item, 3
    FROM device AS d
    JOIN named AS c ON c.kind = 'class' AND c.name = d.device_class
    UNION ALL
    SELECT d.*, 'device', d.hardware_id, NULL, 4
    FROM device AS d
)
SELECT hardware_id, device_id, device_class, item, kind, name
FROM found
QUALIFY row_number() OVER (
    PARTITION BY hardware_id, device_id, device_class, item
    ORDER BY named_item IS DISTINCT FROM item, place, name
) = 1;
CREATE OR REPLACE TEMP MACRO nano(pico) AS
    sign(pico) * ((2 * abs(pico::HUGEINT) * getvariable('rate_numerator') + 1000 * getvariable('rate_denominator'))
        // (2000 * getvariable('rate_denominator')));
CREATE OR REPLACE TABLE cell AS
WITH billed AS (
    SELECT
        kind, name, item, day, nano(sum(billed_pico)) AS billed_nano, nano(sum(effective_pico)) AS effective_nano,
        CASE WHEN item = 'device time' THEN sum(ns) END AS invoice_ns,
        item = 'device time' AND count(*) > count(ns) AS hours_unknown,
        nano(sum(again_pico)) AS again_nano, nano(sum(corrections_pico)) AS corrections_nano
    FROM matched
    GROUP BY kind, name, item, day
),
charged AS (
    SELECT g.kind, g.name, l.item, l.day, sum(l.cost_nano) AS ledger_nano, sum(l.ns) AS ledger_ns
    FROM ledger_day AS l
    JOIN grouped AS g USING (hardware_id, device_id, device_class, item)
    -- What the invoice has nothing of is another vendor's, but device time is what it is for.
    WHERE l.item = 'device time' OR l.item IN (SELECT item FROM matched)
    GROUP BY ALL
)
SELECT
    kind, name, item, day, ledger_nano IS NOT NULL AS in_ledger, effective_nano IS NOT NULL AS in_invoice,
    coalesce(ledger_nano, 0) AS ledger_nano, coalesce(ledger_ns, 0) AS ledger_ns, coalesce(billed_nano, 0) AS billed_nano,
    coalesce(effective_nano, 0) AS effective_nano, coalesce(invoice_ns, 0) AS invoice_ns,
    coalesce(hours_unknown, false) AS hours_unknown, coalesce(again_nano, 0) AS again_nano,
    coalesce(corrections_nano, 0) AS corrections_nano
FROM billed
FULL JOIN charged USING (kind, name, item, day);
