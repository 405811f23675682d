-- Rows of a FOCUS file with types, from `written`, which has each cell as text: NULL where the file has no such column.
-- `fault` says what is wrong with the first cell of a row that cannot be used.
CREATE TEMP MACRO amount(cell) AS
    CASE WHEN regexp_full_match(cell, '-?\d{1,12}(\.\d*)?([eE][+-]?\d{1,2})?') AND abs(TRY_CAST(cell AS DOUBLE)) < 1e12
        THEN TRY_CAST(cell AS DECIMAL(38, 12)) END;
CREATE TEMP MACRO whole(number) AS (number::DECIMAL(28, 12) * 1000000000000::DECIMAL(13, 0))::HUGEINT;
CREATE TEMP MACRO instant_of(cell) AS
    CASE
        WHEN regexp_full_match(cell, '\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?')
        THEN TRY_CAST(cell AS TIMESTAMPTZ)::TIMESTAMP
    END;
-- Nanoseconds in a unit of time of whole things: not GB-Hours, and not 100 Hours.
CREATE TEMP MACRO ns_in(unit) AS
    CASE
        WHEN regexp_matches(unit, '(^|[^a-z])(bytes?|[kmgtp]i?b|i?ops|requests?|tokens?)[ -]', 'i') THEN NULL
        WHEN regexp_full_match(unit, '([a-z][a-z0-9 ]*-)?(hours?|hrs?)', 'i') THEN 3600000000000
        WHEN regexp_full_match(unit, '([a-z][a-z0-9 ]*-)?minutes?', 'i') THEN 60000000000
        WHEN regexp_full_match(unit, '([a-z][a-z0-9 ]*-)?seconds?', 'i') THEN 1000000000
        WHEN regexp_full_match(unit, '([a-z][a-z0-9 ]*-)?days?', 'i') THEN 86400000000000
    END;
CREATE TEMP MACRO wrong(column_name, cell) AS column_name || ' must not be ' || left(coalesce(cell, 'empty'), 80);
CREATE TABLE invoice_row AS
SELECT
    row, coalesce(ResourceId, '') AS resource, coalesce(ResourceType, '') AS resource_type, coalesce(SkuId, '') AS sku,
    coalesce(ConsumedUnit, PricingUnit) AS unit,
    whole(amount(coalesce(ConsumedQuantity, PricingQuantity))) * ns_in(unit) // 1000000000000 AS ns,
    amount(BilledCost) AS billed, amount(EffectiveCost) AS effective, instant_of(ChargePeriodStart) AS begins,
    instant_of(ChargePeriodEnd) AS ends, ChargeCategory AS category,
    -- A purchase that its usage carries the cost of has no effective cost: it is no charge of a device.
    ChargeCategory = 'Usage' OR (ChargeCategory = 'Purchase' AND effective <> 0) AS compared,
    row_number() OVER (PARTITION BY fingerprint ORDER BY row) > 1 AS again,
    CASE
        WHEN BillingCurrency IS DISTINCT FROM 'USD' THEN wrong('BillingCurrency', BillingCurrency)
        WHEN coalesce(ChargeCategory, '') NOT IN ('Usage', 'Purchase', 'Tax', 'Credit', 'Adjustment')
            THEN wrong('ChargeCategory', ChargeCategory)
        WHEN begins IS NULL THEN wrong('ChargePeriodStart', ChargePeriodStart)
        WHEN ends IS NULL OR ends <= begins THEN wrong('ChargePeriodEnd', ChargePeriodEnd)
        WHEN billed IS NULL THEN wrong('BilledCost', BilledCost)
        WHEN effective IS NULL THEN wrong('EffectiveCost', EffectiveCost)
    END AS fault
FROM written;
