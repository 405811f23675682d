-- Which devices of the ledger each charge of `invoice_day` is of. Reads `ledger_day` (the ledger's charges by day, item
-- and device) and `vendor_resource` (the price book's, in its order: `place`). The first of these that fits holds: the
-- resource is a device's hardware_id; or its name, where one device of the period has it; the price book says what it
-- is; the tag rose/device is such a name; its type or SKU is a class. What of the device it charges for, the price book
-- says first.
CREATE OR REPLACE TABLE device_name AS
SELECT device_id, min(hardware_id) AS hardware_id
FROM ledger_day
GROUP BY device_id
HAVING count(DISTINCT hardware_id) = 1;
CREATE OR REPLACE TABLE mapped AS
WITH fitting AS (
    SELECT t.resource, t.sku, v.place, v.from_day, v.to_day
    FROM (SELECT DISTINCT resource, sku FROM invoice_day WHERE compared) AS t
    JOIN vendor_resource AS v
        ON (v.resource IS NULL OR t.resource GLOB v.resource) AND (v.sku IS NULL OR t.sku GLOB v.sku)
)
SELECT d.resource, d.sku, d.day, min(f.place) AS place
FROM (SELECT DISTINCT resource, sku, day FROM invoice_day WHERE compared) AS d
JOIN fitting AS f ON f.resource = d.resource AND f.sku = d.sku AND d.day >= f.from_day AND d.day < f.to_day
GROUP BY ALL;
CREATE OR REPLACE TABLE matched AS
WITH hardware AS (SELECT DISTINCT hardware_id FROM ledger_day),
class AS (SELECT DISTINCT device_class FROM ledger_day),
typed AS (
    SELECT t.resource_type, t.sku, min(c.device_class) AS device_class
    FROM (SELECT DISTINCT resource_type, sku FROM invoice_day WHERE compared) AS t
    JOIN class AS c
        ON lower(c.device_class) IN (lower(t.resource_type), lower(t.sku))
        OR lower(t.sku) = 'device/' || lower(c.device_class)
    GROUP BY ALL
)
SELECT
    i.* EXCLUDE (ns) REPLACE (coalesce(v.item, i.item) AS item),
    i.ns * coalesce(CASE WHEN h.hardware_id IS NULL AND n.hardware_id IS NULL THEN v.devices END, 1) AS ns,
    CASE
        WHEN coalesce(h.hardware_id, n.hardware_id) IS NOT NULL THEN 'device'
        WHEN v.place IS NOT NULL THEN v.kind
        WHEN g.hardware_id IS NOT NULL THEN 'device'
        WHEN t.device_class IS NOT NULL THEN 'class'
        ELSE 'unknown'
    END AS kind,
    CASE
        WHEN coalesce(h.hardware_id, n.hardware_id) IS NOT NULL THEN coalesce(h.hardware_id, n.hardware_id)
        WHEN v.place IS NOT NULL THEN CASE WHEN v.kind = 'device' THEN coalesce(w.hardware_id, v.target) ELSE v.target END
        WHEN g.hardware_id IS NOT NULL THEN g.hardware_id
        WHEN t.device_class IS NOT NULL THEN t.device_class
        ELSE coalesce(nullif(i.resource, ''), nullif(i.sku, ''), nullif(i.resource_type, ''), 'no resource')
    END AS name
FROM invoice_day AS i
LEFT JOIN hardware AS h ON h.hardware_id = i.resource
LEFT JOIN device_name AS n ON n.device_id = i.resource
LEFT JOIN mapped AS m ON m.resource = i.resource AND m.sku = i.sku AND m.day = i.day
LEFT JOIN vendor_resource AS v ON v.place = m.place
LEFT JOIN device_name AS w ON w.device_id = v.target AND v.by_name
LEFT JOIN device_name AS g ON g.device_id = i.tagged
LEFT JOIN typed AS t ON t.resource_type = i.resource_type AND t.sku = i.sku
WHERE i.compared;
