-- Which devices of the ledger each thing of `invoice_day` is of, in each stretch of days in which the price book's
-- meaning of it does not change: `matched`. Reads `ledger_day` (the ledger's charges by day, item
-- and device) and `vendor_resource` (the price book's, in its order: `place`). The first of these that fits holds: the
-- resource is a device's hardware_id; or its name, where one device of the period has it; the price book says what it
-- is; the tag rose/device is such a name; its type or SKU is a class. What of the device it charges for, the price book
-- says first.
CREATE OR REPLACE TABLE device_name AS
SELECT device_id, min(hardware_id) AS hardware_id
FROM ledger_day
GROUP BY device_id
HAVING count(DISTINCT hardware_id) = 1;
CREATE OR REPLACE TABLE stretch AS
SELECT day AS from_day, lead(day, 1, getvariable('to_day')) OVER (ORDER BY day) AS to_day
FROM (
    SELECT DISTINCT unnest([getvariable('from_day'), from_day, to_day]) AS day
    FROM (
        FROM vendor_resource UNION ALL BY NAME
        SELECT getvariable('from_day') AS from_day, getvariable('to_day') AS to_day
    )
)
WHERE day >= getvariable('from_day') AND day < getvariable('to_day');
CREATE OR REPLACE TABLE mapped AS
WITH fitting AS (
    SELECT t.resource, t.sku, v.place, v.from_day, v.to_day
    FROM (SELECT DISTINCT resource, sku FROM thing WHERE compared) AS t
    JOIN vendor_resource AS v
        ON (v.resource IS NULL OR t.resource GLOB v.resource) AND (v.sku IS NULL OR t.sku GLOB v.sku)
)
SELECT f.resource, f.sku, s.from_day, min(f.place) AS place
FROM fitting AS f
JOIN stretch AS s ON f.from_day <= s.from_day AND f.to_day >= s.to_day
GROUP BY ALL;
CREATE OR REPLACE TABLE matched AS
WITH hardware AS (SELECT DISTINCT hardware_id FROM ledger_day),
class AS (SELECT DISTINCT device_class FROM ledger_day),
typed AS (
    SELECT t.resource_type, t.sku, min(c.device_class) AS device_class
    FROM (SELECT DISTINCT resource_type, sku FROM thing WHERE compared) AS t
    JOIN class AS c
        ON lower(c.device_class) IN (lower(t.resource_type), lower(t.sku))
        OR lower(t.sku) = 'device/' || lower(c.device_class)
    GROUP BY ALL
),
charged AS (
    SELECT DISTINCT i.thing, s.from_day, s.to_day
    FROM invoice_day AS i
    JOIN stretch AS s ON i.day >= s.from_day AND i.day < s.to_day
)
SELECT
    i.thing, a.from_day, a.to_day, coalesce(v.item, i.item) AS item,
    coalesce(CASE WHEN h.hardware_id IS NULL AND n.hardware_id IS NULL THEN v.devices END, 1) AS devices,
    CASE
        WHEN coalesce(h.hardware_id, n.hardware_id) IS NOT NULL THEN 'device'
        WHEN v.place IS NOT NULL THEN v.kind
        WHEN g.hardware_id IS NOT NULL THEN 'device'
        WHEN t.device_class IS NOT NULL THEN 'class'
        ELSE 'unknown'
    END AS kind,
    CASE
        WHEN coalesce(h.hardware_id, n.hardware_id) IS NOT NULL THEN coalesce(h.hardware_id, n.hardware_id)
        WHEN v.place IS NOT NULL
            THEN CASE WHEN v.kind = 'device' THEN coalesce(w.hardware_id, v.target) ELSE v.target END
        WHEN g.hardware_id IS NOT NULL THEN g.hardware_id
        WHEN t.device_class IS NOT NULL THEN t.device_class
        ELSE coalesce(nullif(i.resource, ''), nullif(i.sku, ''), nullif(i.resource_type, ''), 'no resource')
    END AS name
FROM thing AS i
JOIN charged AS a USING (thing)
LEFT JOIN hardware AS h ON h.hardware_id = i.resource
LEFT JOIN device_name AS n ON n.device_id = i.resource
LEFT JOIN mapped AS m ON m.resource = i.resource AND m.sku = i.sku AND m.from_day = a.from_day
LEFT JOIN vendor_resource AS v ON v.place = m.place
LEFT JOIN device_name AS w ON w.device_id = v.target AND v.by_name
LEFT JOIN device_name AS g ON g.device_id = i.tagged
LEFT JOIN typed AS t ON t.resource_type = i.resource_type AND t.sku = i.sku
WHERE i.compared;
