-- FOCUS's rules that hold in each row of the view `focus`, one column to a rule: what the macro `breach` makes of the
-- rows that break it (rose/pricing/export/focus_check.py makes both). A rule begins with the column that it is about.
-- `near` allows for whole nano-dollars: a device-hour's cost is rounded once and then divided three times.
CREATE OR REPLACE TEMP MACRO near(a, b) AS abs(a - b) <= 0.000000005;
-- An hour of the fleet adds up the rounding of each of its devices.
CREATE OR REPLACE TEMP MACRO about(a, b) AS near(a, b) OR abs(a - b) <= abs(b) / 1000000;
CREATE OR REPLACE TEMP MACRO whole(number) AS (number::DECIMAL(25, 12) * 1000000000000::DECIMAL(13, 0))::HUGEINT;
CREATE OR REPLACE TEMP MACRO times(a, b) AS TRY(pico(rounded(whole(a) * whole(b), 1000000000000)));
CREATE OR REPLACE TEMP MACRO is_instant(said) AS
    regexp_full_match(said, '\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ') AND try_cast(said AS TIMESTAMP) IS NOT NULL;
-- Text that is not JSON has no type: `json_type` raises an error for it.
CREATE OR REPLACE TEMP MACRO is_flat(said) AS CASE
    WHEN NOT json_valid(said) THEN false
    WHEN json_type(said) <> 'OBJECT' THEN false
    ELSE NOT list_has_any(
        list_transform(json_extract(said, '$.*'), lambda value: json_type(value)), ['OBJECT', 'ARRAY']
    )
END;
SELECT
    breach(row, BilledCost IS NULL) AS "BilledCost must not be null",
    breach(row, BillingAccountId IS NULL) AS "BillingAccountId must not be null",
    breach(row, BillingAccountName IS NULL) AS "BillingAccountName must not be null",
    breach(row, BillingCurrency IS NULL) AS "BillingCurrency must not be null",
    breach(row, BillingPeriodEnd IS NULL) AS "BillingPeriodEnd must not be null",
    breach(row, BillingPeriodStart IS NULL) AS "BillingPeriodStart must not be null",
    breach(row, ChargeCategory IS NULL) AS "ChargeCategory must not be null",
    breach(row, ChargeDescription IS NULL) AS "ChargeDescription must not be null",
    breach(row, ChargeFrequency IS NULL) AS "ChargeFrequency must not be null",
    breach(row, ChargePeriodEnd IS NULL) AS "ChargePeriodEnd must not be null",
    breach(row, ChargePeriodStart IS NULL) AS "ChargePeriodStart must not be null",
    breach(row, ContractedCost IS NULL) AS "ContractedCost must not be null",
    breach(row, EffectiveCost IS NULL) AS "EffectiveCost must not be null",
    breach(row, InvoiceIssuerName IS NULL) AS "InvoiceIssuerName must not be null",
    breach(row, ListCost IS NULL) AS "ListCost must not be null",
    breach(row, PricingCategory IS NULL) AS "PricingCategory must not be null",
    breach(row, ProviderName IS NULL) AS "ProviderName must not be null",
    breach(row, PublisherName IS NULL) AS "PublisherName must not be null",
    breach(row, ServiceCategory IS NULL) AS "ServiceCategory must not be null",
    breach(row, ServiceName IS NULL) AS "ServiceName must not be null",
    breach(row, ServiceSubcategory IS NULL) AS "ServiceSubcategory must not be null",
    breach(row, SkuId IS NULL) AS "SkuId must not be null",
    breach(row, SkuMeter IS NULL) AS "SkuMeter must not be null",
    breach(row, SkuPriceId IS NULL) AS "SkuPriceId must not be null",
    breach(row, x_PriceBookVersion IS NULL) AS "x_PriceBookVersion must not be null",
    breach(row, x_Provenance IS NULL) AS "x_Provenance must not be null",
    breach(row, x_RunId IS NULL) AS "x_RunId must not be null",
    breach(row, ChargeClass IS NULL AND ContractedUnitPrice IS NULL)
        AS "ContractedUnitPrice must not be null unless the row is a correction",
    breach(row, ChargeClass IS NULL AND ListUnitPrice IS NULL)
        AS "ListUnitPrice must not be null unless the row is a correction",
    breach(row, ChargeClass IS NULL AND x_EffectiveUnitPrice IS NULL)
        AS "x_EffectiveUnitPrice must not be null unless the row is a correction",
    breach(row, ChargeClass IS NULL AND PricingQuantity IS NULL)
        AS "PricingQuantity must not be null unless the row is a correction",

    breach(row, ChargeCategory NOT IN ('Usage', 'Purchase')) AS "ChargeCategory must be Usage or Purchase",
    breach(row, ChargeClass <> 'Correction') AS "ChargeClass must be Correction or null",
    breach(row, ChargeFrequency <> CASE ChargeCategory WHEN 'Purchase' THEN 'Recurring' ELSE 'Usage-Based' END)
        AS "ChargeFrequency must be Recurring for a Purchase, Usage-Based for Usage",
    breach(row, CommitmentDiscountCategory <> 'Usage') AS "CommitmentDiscountCategory must be Usage or null",
    breach(row, CommitmentDiscountStatus NOT IN ('Used', 'Unused'))
        AS "CommitmentDiscountStatus must be Used, Unused or null",
    breach(row, PricingCategory
            <> CASE WHEN CommitmentDiscountId IS NOT NULL AND ChargeCategory = 'Usage'
                THEN 'Committed' ELSE 'Standard' END)
        AS "PricingCategory must be Committed for usage of the fleet, Standard for the rest",
    breach(row, ServiceCategory <> 'AI and Machine Learning') AS "ServiceCategory must be AI and Machine Learning",
    breach(row, ServiceSubcategory <> 'Generative AI') AS "ServiceSubcategory must be Generative AI",
    breach(row, NOT regexp_full_match(BillingCurrency, '[A-Z]{3}')) AS "BillingCurrency must be a code such as USD",
    breach(row, PricingUnit NOT IN ('GPU-Hours', 'Core-Hours', 'GB', 'kWh'))
        AS "PricingUnit must be GPU-Hours, Core-Hours, GB or kWh",
    breach(row, NOT regexp_full_match(
        x_Provenance, '(live|replay|simulated)(, UNVERIFIED)?(, EXAMPLE PRICES, not yours)?'
    ))
        AS "x_Provenance must be live, replay or simulated",
    breach(row, x_CostBucket NOT IN (
        'serving', 'rollout', 'train', 'sync', 'activation', 'headroom', 'idle', 'unaccounted',
        'transfer', 'energy'
    ))
        AS "x_CostBucket must be a bucket of the charges",
    breach(row, (x_CostBucket IS NULL) <> (ChargeCategory = 'Purchase'))
        AS "x_CostBucket must be null for a Purchase and for nothing else",

    breach(row, NOT is_instant(BillingPeriodStart)) AS "BillingPeriodStart must be written YYYY-MM-DDTHH:mm:ssZ",
    breach(row, NOT is_instant(BillingPeriodEnd)) AS "BillingPeriodEnd must be written YYYY-MM-DDTHH:mm:ssZ",
    breach(row, NOT is_instant(ChargePeriodStart)) AS "ChargePeriodStart must be written YYYY-MM-DDTHH:mm:ssZ",
    breach(row, NOT is_instant(ChargePeriodEnd)) AS "ChargePeriodEnd must be written YYYY-MM-DDTHH:mm:ssZ",
    -- Written like this, instants are in order as text.
    breach(row, BillingPeriodStart >= BillingPeriodEnd) AS "BillingPeriodEnd must be after BillingPeriodStart",
    breach(row, ChargePeriodStart >= ChargePeriodEnd) AS "ChargePeriodEnd must be after ChargePeriodStart",
    breach(row, ChargeClass IS NULL AND ChargePeriodStart < BillingPeriodStart)
        AS "ChargePeriodStart must be in the billing period unless the row is a correction",
    breach(row, ChargeClass IS NULL AND ChargePeriodEnd > BillingPeriodEnd)
        AS "ChargePeriodEnd must be in the billing period unless the row is a correction",

    breach(row, (CommitmentDiscountId IS NULL) <> (CommitmentDiscountCategory IS NULL))
        AS "CommitmentDiscountCategory must be there if and only if there is a CommitmentDiscountId",
    breach(row, (CommitmentDiscountId IS NULL) <> (CommitmentDiscountName IS NULL))
        AS "CommitmentDiscountName must be there if and only if there is a CommitmentDiscountId",
    breach(row, (CommitmentDiscountId IS NULL) <> (CommitmentDiscountType IS NULL))
        AS "CommitmentDiscountType must be there if and only if there is a CommitmentDiscountId",
    breach(row, (CommitmentDiscountStatus IS NOT NULL)
            <> (CommitmentDiscountId IS NOT NULL AND ChargeCategory = 'Usage'))
        AS "CommitmentDiscountStatus must be there if and only if usage has a CommitmentDiscountId",
    breach(row, (CommitmentDiscountQuantity IS NOT NULL) <> (CommitmentDiscountId IS NOT NULL AND ChargeClass IS NULL))
        AS "CommitmentDiscountQuantity must be there if and only if there is a CommitmentDiscountId and no correction",
    breach(row, (CommitmentDiscountQuantity IS NULL) <> (CommitmentDiscountUnit IS NULL))
        AS "CommitmentDiscountUnit must be there if and only if there is a CommitmentDiscountQuantity",
    breach(row, (ConsumedQuantity IS NOT NULL)
            <> (ChargeCategory = 'Usage' AND CommitmentDiscountStatus IS DISTINCT FROM 'Unused'))
        AS "ConsumedQuantity must be there if and only if the row is usage that is not Unused",
    breach(row, (ConsumedQuantity IS NULL) <> (ConsumedUnit IS NULL))
        AS "ConsumedUnit must be there if and only if there is a ConsumedQuantity",
    breach(row, (PricingQuantity IS NULL) <> (PricingUnit IS NULL))
        AS "PricingUnit must be there if and only if there is a PricingQuantity",
    breach(row, (ResourceId IS NULL) <> (ResourceType IS NULL))
        AS "ResourceType must be there if and only if there is a ResourceId",
    breach(row, (ChargeCategory = 'Purchase' OR CommitmentDiscountStatus = 'Unused')
            AND ResourceId IS DISTINCT FROM CommitmentDiscountId)
        AS "ResourceId must be the CommitmentDiscountId of a Purchase and of unused capacity",
    breach(row, (SubAccountId IS NULL) <> (SubAccountName IS NULL))
        AS "SubAccountName must be there if and only if there is a SubAccountId",
    breach(row, CommitmentDiscountStatus IS DISTINCT FROM CASE
            WHEN x_CostBucket IN ('idle', 'unaccounted') THEN 'Unused'
            WHEN x_CostBucket NOT IN ('transfer', 'energy') THEN 'Used'
        END)
        AS "CommitmentDiscountStatus must be Unused for idle and unaccounted, Used for other device time",
    breach(row, NOT is_flat(Tags)) AS "Tags must be one flat JSON object",
    breach(row, NOT is_flat(SkuPriceDetails)) AS "SkuPriceDetails must be one flat JSON object",

    breach(row, ChargeCategory = 'Purchase' AND EffectiveCost <> 0) AS "EffectiveCost must be 0 for a Purchase",
    breach(row, CommitmentDiscountId IS NOT NULL AND ChargeCategory = 'Usage' AND BilledCost <> 0)
        AS "BilledCost must be 0 for usage of the fleet, which its Purchase bills",
    breach(row, CommitmentDiscountId IS NULL AND BilledCost <> EffectiveCost)
        AS "BilledCost must be the EffectiveCost of what the fleet's purchase does not cover",
    breach(row, ProviderName <> InvoiceIssuerName AND BilledCost <> 0)
        AS "BilledCost must be 0 where another than the provider is paid",
    breach(row, ChargeClass IS NULL AND BilledCost < 0)
        AS "BilledCost must not be negative unless the row is a correction",
    breach(row, ChargeClass IS NULL AND EffectiveCost < 0)
        AS "EffectiveCost must not be negative unless the row is a correction",
    breach(row, ListUnitPrice < 0) AS "ListUnitPrice must not be negative",
    breach(row, ContractedUnitPrice < 0) AS "ContractedUnitPrice must not be negative",
    breach(row, PricingQuantity < 0) AS "PricingQuantity must not be negative",
    breach(row, ChargeClass IS NULL AND ConsumedQuantity < 0)
        AS "ConsumedQuantity must not be negative unless the row is a correction",
    breach(row, ConsumedQuantity <> PricingQuantity) AS "ConsumedQuantity must be the PricingQuantity",
    breach(row, CommitmentDiscountQuantity <> PricingQuantity)
        AS "CommitmentDiscountQuantity must be the PricingQuantity",
    breach(row, ChargeClass IS NULL AND ListCost IS DISTINCT FROM times(ListUnitPrice, PricingQuantity))
        AS "ListCost must be ListUnitPrice * PricingQuantity",
    breach(row, ChargeClass IS NULL AND ContractedCost IS DISTINCT FROM times(ContractedUnitPrice, PricingQuantity))
        AS "ContractedCost must be ContractedUnitPrice * PricingQuantity",
    breach(row, ChargeClass IS NOT NULL AND ContractedCost <> ListCost)
        AS "ContractedCost must be the ListCost of a correction, which has no prices",
    breach(row, ContractedUnitPrice > ListUnitPrice) AS "ContractedUnitPrice must not be above the ListUnitPrice",
    breach(row, x_EffectiveUnitPrice < 0) AS "x_EffectiveUnitPrice must not be negative",
    breach(row, x_EffectiveUnitPrice > ContractedUnitPrice)
        AS "x_EffectiveUnitPrice must not be above the ContractedUnitPrice",
    breach(row, ChargeCategory = 'Usage' AND NOT near(EffectiveCost, effective_cost))
        AS "EffectiveCost must be x_EffectiveUnitPrice * PricingQuantity but for rounding",
    breach(row, (ChargeCategory = 'Purchase' OR CommitmentDiscountId IS NULL) AND NOT about(BilledCost, effective_cost))
        AS "BilledCost must be x_EffectiveUnitPrice * PricingQuantity but for rounding"
-- The cost at the unit price; a correction has no price, and counts at its list cost.
FROM (SELECT *, coalesce(times(x_EffectiveUnitPrice, PricingQuantity), ContractedCost) AS effective_cost FROM focus);
