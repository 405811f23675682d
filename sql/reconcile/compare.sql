-- The ledger beside an invoice, by thing and day: `cell`. Reads `invoice_row`, `charged` (the ledger's charges by day,
-- device and item) and `mapping` (the price book's [[vendor_resource]], in its order: `place`). A row is cut by time;
-- its last part takes what rounding leaves, so that the parts add up to the row. Amounts are nano-dollars.
CREATE TEMP MACRO upto(nano, until, begins, ends) AS
    CASE
        WHEN until <= begins THEN 0::HUGEINT
        WHEN until >= ends THEN nano
        ELSE nano * (epoch_ms(until) - epoch_ms(begins)) // (epoch_ms(ends) - epoch_ms(begins))
    END;
CREATE TEMP MACRO part(nano, day, begins, ends) AS
    upto(nano, least(day + INTERVAL 1 DAY, getvariable('to_day')), begins, ends)
        - upto(nano, greatest(day, getvariable('from_day')), begins, ends);
CREATE TABLE invoice_day AS
WITH spread AS (
    SELECT
        *, whole(round(billed, 9)) // 1000 AS billed_nano, whole(round(effective, 9)) // 1000 AS effective_nano,
        CASE
            WHEN unit IS NULL OR ns IS NOT NULL THEN 'device time'
            WHEN regexp_full_match(unit, '[km]?wh', 'i') THEN 'energy'
            WHEN regexp_matches(concat_ws(' ', resource_type, sku), 'network|transfer|bandwidth|egress|ingress', 'i')
            THEN 'transfer'
            ELSE 'other'
        END AS item,
        unnest(
            range(
                date_trunc('day', greatest(begins, getvariable('from_day'))), least(ends, getvariable('to_day')),
                INTERVAL 1 DAY
            )
        ) AS day
    FROM invoice_row
    WHERE compared AND begins < getvariable('to_day') AND ends > getvariable('from_day')
)
SELECT
    resource, resource_type, sku, item, day, sum(part(billed_nano, day, begins, ends)) AS billed_nano,
    sum(part(effective_nano, day, begins, ends)) AS effective_nano,
    -- Unknown for all where it is for one: hours of a part are not the hours of the whole.
    CASE WHEN count(*) = count(ns) THEN sum(part(ns, day, begins, ends)) END AS invoice_ns,
    coalesce(sum(part(effective_nano, day, begins, ends)) FILTER (again), 0) AS again_nano
FROM spread
GROUP BY ALL;
-- The first of these that fits: a device's hardware_id; its name, where one device has it; the price book; its class.
CREATE TABLE device_name AS
SELECT device_id, min(hardware_id) AS hardware_id FROM charged GROUP BY device_id
HAVING count(DISTINCT hardware_id) = 1;
CREATE TABLE matched AS
WITH thing AS (SELECT DISTINCT resource, resource_type, sku FROM invoice_day),
mapped AS (
    SELECT t.resource, t.sku, arg_min(struct_pack(kind := v.kind, target := v.target), v.place) AS entry
    FROM thing AS t
    JOIN mapping AS v ON (v.resource IS NULL OR t.resource GLOB v.resource) AND (v.sku IS NULL OR t.sku GLOB v.sku)
    GROUP BY ALL
)
SELECT
    t.*,
    CASE
        WHEN coalesce(h.hardware_id, n.hardware_id) IS NOT NULL THEN 'device'
        WHEN m.entry IS NOT NULL THEN m.entry.kind
        WHEN c.device_class IS NOT NULL THEN 'class'
        ELSE 'unknown'
    END AS kind,
    coalesce(
        h.hardware_id, n.hardware_id, w.hardware_id, m.entry.target, c.device_class, nullif(t.resource, ''),
        nullif(t.sku, ''), 'no resource'
    ) AS name
FROM thing AS t
LEFT JOIN (SELECT DISTINCT hardware_id FROM charged) AS h ON h.hardware_id = t.resource
LEFT JOIN device_name AS n ON n.device_id = t.resource
LEFT JOIN mapped AS m ON m.resource = t.resource AND m.sku = t.sku
LEFT JOIN device_name AS w ON w.device_id = m.entry.target AND m.entry.kind = 'device'
LEFT JOIN (SELECT DISTINCT device_class FROM charged) AS c
    ON lower(c.device_class) IN (lower(t.resource_type), lower(t.sku));
-- A device that the invoice does not name is part of the group or the class that it does name.
CREATE TABLE grouped AS
SELECT d.*, m.kind, coalesce(m.name, d.hardware_id) AS name
FROM (SELECT DISTINCT hardware_id, device_id, device_class FROM charged) AS d
LEFT JOIN (SELECT DISTINCT kind, name FROM matched WHERE kind <> 'unknown') AS m
    ON (m.kind = 'device' AND d.hardware_id GLOB m.name) OR (m.kind = 'class' AND m.name = d.device_class)
    OR (m.kind = 'devices' AND d.hardware_id GLOB m.name)
QUALIFY row_number() OVER (
    PARTITION BY d.hardware_id, d.device_id, d.device_class
    ORDER BY list_position(['device', 'devices', 'class'], m.kind) NULLS LAST, m.name
) = 1;
CREATE TABLE cell AS
SELECT
    coalesce(i.kind, l.kind) AS kind, coalesce(i.name, l.name) AS name, coalesce(i.item, l.item) AS item,
    coalesce(i.day, l.day)::DATE AS day, coalesce(ledger_nano, 0) AS ledger_nano, coalesce(ledger_ns, 0) AS ledger_ns,
    coalesce(billed_nano, 0) AS billed_nano, coalesce(effective_nano, 0) AS effective_nano,
    CASE WHEN i.day IS NULL THEN 0 ELSE invoice_ns END AS invoice_ns, coalesce(again_nano, 0) AS again_nano,
    l.day IS NOT NULL AS in_ledger, i.day IS NOT NULL AS in_invoice
FROM (
    SELECT
        kind, name, item, day, sum(billed_nano) AS billed_nano, sum(effective_nano) AS effective_nano,
        CASE WHEN count(*) = count(invoice_ns) THEN sum(invoice_ns) END AS invoice_ns, sum(again_nano) AS again_nano
    FROM invoice_day
    JOIN matched USING (resource, resource_type, sku)
    GROUP BY ALL
) AS i
FULL JOIN (
    SELECT coalesce(kind, 'device') AS kind, name, item, day, sum(cost_nano) AS ledger_nano, sum(ns) AS ledger_ns
    FROM charged
    JOIN grouped USING (hardware_id, device_id, device_class)
    -- Energy and transfer that the invoice has nothing of are another vendor's.
    WHERE item = 'device time' OR item IN (SELECT item FROM invoice_day)
    GROUP BY ALL
) AS l ON l.kind = i.kind AND l.name = i.name AND l.item = i.item AND l.day = i.day;
-- Both sides in all, by line, and by line and day.
CREATE VIEW summed AS
SELECT
    CASE WHEN grouping(kind) = 1 THEN 'total' WHEN grouping(day) = 1 THEN 'line' ELSE 'day' END AS level,
    day, kind, name, item,
    sum(ledger_nano)::HUGEINT AS ledger_nano, sum(billed_nano)::HUGEINT AS billed_nano,
    sum(effective_nano)::HUGEINT AS effective_nano,
    (sum(effective_nano) - sum(ledger_nano))::HUGEINT AS difference_nano, sum(ledger_ns)::HUGEINT AS ledger_ns,
    CASE WHEN count(*) = count(invoice_ns) THEN sum(invoice_ns) END::HUGEINT AS invoice_ns,
    sum(again_nano)::HUGEINT AS again_nano, count(*) FILTER (in_ledger AND NOT in_invoice) AS days_ledger,
    count(*) FILTER (in_invoice AND NOT in_ledger) AS days_invoice,
    count(*) FILTER (in_ledger AND in_invoice) AS days_both
FROM cell
GROUP BY GROUPING SETS ((), (kind, name, item), (kind, name, item, day));
