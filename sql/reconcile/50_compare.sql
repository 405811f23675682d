-- What is compared: a `line` for each thing that is charged, and item, and where each device of the ledger is in them.
-- A device that the invoice does not name is part of the group or the class that it does name.
CREATE OR REPLACE TABLE grouped AS
WITH device AS (SELECT DISTINCT hardware_id, device_id, device_class, item FROM ledger_day),
pattern AS (SELECT DISTINCT target, by_name FROM vendor_resource WHERE kind = 'devices'),
named AS (SELECT DISTINCT kind, name, item FROM matched),
-- What is named for the item goes before what is named for another: a device may be billed by itself and its transfer
-- for all.
candidate AS (
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
FROM candidate
QUALIFY row_number() OVER (
    PARTITION BY hardware_id, device_id, device_class, item
    ORDER BY named_item IS DISTINCT FROM item, place, name
) = 1;
CREATE OR REPLACE TABLE charged_day AS
SELECT g.kind, g.name, l.item, l.day, sum(l.cost_nano) AS ledger_nano, sum(l.ns) AS ledger_ns
FROM ledger_day AS l
JOIN grouped AS g USING (hardware_id, device_id, device_class, item)
-- What the invoice has nothing of is another vendor's, but device time is what it is for.
WHERE l.item = 'device time' OR l.item IN (SELECT item FROM matched)
GROUP BY ALL;
-- In the order in which they are shown where they differ alike.
CREATE OR REPLACE TABLE line AS
SELECT row_number() OVER (ORDER BY kind, name, item) AS line, *
FROM (SELECT kind, name, item FROM matched UNION SELECT kind, name, item FROM charged_day);
CREATE OR REPLACE TABLE line_thing AS
SELECT m.thing, m.from_day, m.to_day, m.devices, m.item = 'device time' AS has_hours, l.line
FROM matched AS m
JOIN line AS l USING (kind, name, item);
CREATE OR REPLACE TABLE cell (
    line BIGINT, day TIMESTAMP, in_ledger BOOLEAN, in_invoice BOOLEAN, ledger_nano HUGEINT, ledger_ns HUGEINT,
    billed_nano HUGEINT, effective_nano HUGEINT, invoice_ns HUGEINT, hours_unknown BOOLEAN, again_nano HUGEINT,
    corrections_nano HUGEINT
);
CREATE OR REPLACE TABLE line_sum (
    line BIGINT, days_both BIGINT, days_ledger BIGINT, days_invoice BIGINT, ledger_nano HUGEINT, ledger_ns HUGEINT,
    billed_nano HUGEINT, effective_nano HUGEINT, invoice_ns HUGEINT, again_nano HUGEINT, corrections_nano HUGEINT
);
