-- Rows of an invoice with the types that FOCUS gives them, from `written`, which has each cell as text: NULL where the
-- file has no such column. `fault` says what is wrong with the first cell of a row that cannot be used.
CREATE OR REPLACE TEMP MACRO amount(cell) AS
    CASE WHEN regexp_full_match(cell, '-?\d{1,12}(\.\d*)?([eE][+-]?\d{1,2})?')
        THEN TRY_CAST(cell AS DECIMAL(38, 12)) END;
CREATE OR REPLACE TEMP MACRO is_amount(cell) AS coalesce(abs(amount(cell)) < 1000000000000, false);
CREATE OR REPLACE TEMP MACRO instant_of(cell) AS
    CASE
        WHEN regexp_full_match(cell, '\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?')
        THEN TRY_CAST(cell AS TIMESTAMPTZ)::TIMESTAMP
    END;
CREATE OR REPLACE TEMP MACRO wrong(rule, cell) AS {'rule': rule, 'cell': left(coalesce(cell, 'no value'), 80)};
CREATE OR REPLACE TABLE invoice_row AS
SELECT
    row, fingerprint, BillingCurrency AS currency, ChargeCategory AS category, InvoiceId AS invoice_id,
    coalesce(ChargeClass = 'Correction', false) AS correction,
    coalesce(ResourceId, '') AS resource, coalesce(ResourceType, '') AS resource_type, coalesce(SkuId, '') AS sku,
    coalesce(
        CASE WHEN contains(Tags, 'rose/device') AND json_valid(Tags)
            THEN json_extract_string(Tags, '$."rose/device"') END,
        ''
    ) AS tagged,
    -- A disk's bytes have the same unit.
    regexp_matches(
        concat_ws(' ', ServiceCategory, ServiceSubcategory, ServiceName, ResourceType, SkuId, SkuMeter),
        'network|transfer|bandwidth|egress|ingress', 'i'
    ) AS of_network,
    CASE WHEN ConsumedQuantity IS NULL THEN PricingUnit ELSE ConsumedUnit END AS unit,
    amount(coalesce(ConsumedQuantity, PricingQuantity)) AS quantity,
    amount(BilledCost) AS billed, amount(EffectiveCost) AS effective,
    instant_of(ChargePeriodStart) AS begins, instant_of(ChargePeriodEnd) AS ends,
    CASE
        WHEN NOT coalesce(regexp_full_match(BillingCurrency, '[A-Z]{3}'), false)
            THEN wrong('BillingCurrency must be a code such as USD', BillingCurrency)
        WHEN coalesce(ChargeCategory, '') NOT IN ('Usage', 'Purchase', 'Tax', 'Credit', 'Adjustment')
            THEN wrong('ChargeCategory must be Usage, Purchase, Tax, Credit or Adjustment', ChargeCategory)
        WHEN instant_of(ChargePeriodStart) IS NULL
            THEN wrong('ChargePeriodStart must be written YYYY-MM-DDTHH:mm:ssZ', ChargePeriodStart)
        WHEN instant_of(ChargePeriodEnd) IS NULL
            THEN wrong('ChargePeriodEnd must be written YYYY-MM-DDTHH:mm:ssZ', ChargePeriodEnd)
        WHEN instant_of(ChargePeriodEnd) <= instant_of(ChargePeriodStart)
            THEN wrong('ChargePeriodEnd must be after ChargePeriodStart', ChargePeriodEnd)
        WHEN NOT is_amount(BilledCost) THEN wrong('BilledCost must be a number below 1e12', BilledCost)
        WHEN NOT is_amount(EffectiveCost) THEN wrong('EffectiveCost must be a number below 1e12', EffectiveCost)
        WHEN ConsumedQuantity IS NOT NULL AND NOT is_amount(ConsumedQuantity)
            THEN wrong('ConsumedQuantity must be a number below 1e12', ConsumedQuantity)
        WHEN PricingQuantity IS NOT NULL AND NOT is_amount(PricingQuantity)
            THEN wrong('PricingQuantity must be a number below 1e12', PricingQuantity)
        WHEN amount(ConsumedQuantity) < 0 AND ChargeCategory = 'Usage' AND ChargeClass IS DISTINCT FROM 'Correction'
            THEN wrong('ConsumedQuantity must not be negative unless ChargeClass is Correction', ConsumedQuantity)
        WHEN length(ResourceId) > 2000 THEN wrong('ResourceId must have at most 2000 characters', ResourceId)
        WHEN length(ResourceType) > 2000 THEN wrong('ResourceType must have at most 2000 characters', ResourceType)
        WHEN length(SkuId) > 2000 THEN wrong('SkuId must have at most 2000 characters', SkuId)
        WHEN length(ConsumedUnit) > 2000 THEN wrong('ConsumedUnit must have at most 2000 characters', ConsumedUnit)
        WHEN length(PricingUnit) > 2000 THEN wrong('PricingUnit must have at most 2000 characters', PricingUnit)
        WHEN length(InvoiceId) > 2000 THEN wrong('InvoiceId must have at most 2000 characters', InvoiceId)
    END AS fault
FROM written;
