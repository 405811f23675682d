-- FOCUS 1.2 rows of a portion of a bill, in order: of each hour the purchases of its capacity, then its charges.
-- Reads the tables `charge` (charges; `n` counts them, `part`, `item` and `stretch` lead to the others), `part` (what
-- a charge is invoiced as), `price` (of an item in a stretch of time) and `run_tag`; rose/pricing/export/focus.py
-- makes them. Amounts and quantities are whole 1e-12 dollars, hours, GB and kWh (`_pico`): no float is near.
WITH priced AS (
    SELECT
        c.* REPLACE (coalesce(c.commitment, p.agreed, 'none') AS commitment), p.price_pico, p.price_id,
        c.kind = 'capacity' AS committed,
        CASE c.kind
            WHEN 'capacity' THEN rounded(c.ns::HUGEINT * 10, 36)
            WHEN 'transfer' THEN c.bytes::HUGEINT * 1000
            ELSE rounded(c.energy_mw_ns, 3600000)
        END AS quantity_pico
    FROM charge AS c
    LEFT JOIN price AS p ON p.part = c.part AND p.item = c.item AND p.stretch = c.stretch
),
line AS (
    SELECT
        part, hour, 0 AS section, min(n) AS n, run_id, provenance,
        'Purchase' AS category, 'Recurring' AS frequency, NULL AS status, true AS committed, device_class, commitment,
        'an hour of the fleet: ' || device_class || ', ' || commitment AS description,
        unit, rounded(sum(ns) * 10, 36) AS quantity_pico, price_pico, price_id,
        sum(cost_nano) AS billed_nano, 0::HUGEINT AS effective_nano,
        NULL AS device_id, NULL AS hardware_id, 'device/' || device_class AS sku_id, 'Device Time' AS meter,
        NULL AS team,
        json_object() AS tags,
        NULL AS bucket, NULL AS lease_id, NULL AS policy_version, NULL AS marginal_nano,
        NULL AS ledger_seq
    FROM priced
    WHERE committed
    GROUP BY
        part, hour, run_id, provenance, device_class, commitment, unit, price_pico, price_id
    UNION ALL
    SELECT
        part, hour, 1, n, run_id, provenance,
        'Usage', 'Usage-Based',
        CASE WHEN bucket IN ('idle', 'unaccounted') THEN 'Unused' WHEN committed THEN 'Used' END,
        committed, device_class, commitment,
        CASE kind
            WHEN 'capacity' THEN bucket || ' time of ' || device_id || ' (' || device_class || ')'
            WHEN 'transfer' THEN 'weights sent to ' || device_id || coalesce(' over ' || route, '')
            ELSE 'electricity of ' || device_id || ' (' || device_class || ')'
        END || coalesce(', ' || cause, ''),
        unit, quantity_pico, price_pico, price_id,
        CASE WHEN committed THEN 0 ELSE cost_nano END, cost_nano,
        device_id, hardware_id,
        CASE kind WHEN 'capacity' THEN 'device/' || device_class ELSE item END,
        CASE kind WHEN 'capacity' THEN 'Device Time' WHEN 'transfer' THEN 'Transfer' ELSE 'Energy' END,
        nullif(team, 'unallocated'),
        json_object(
            'rose/cause', cause, 'rose/device', device_id, 'rose/fate', fate, 'rose/pool', pool, 'rose/task', task
        ),
        bucket, lease_id, policy_version, marginal_nano,
        writer || ':' || first_seq || '-' || last_seq
    FROM priced
),
listed AS (
    SELECT
        l.*, i.* EXCLUDE (part),
        'rose/fleet/' || device_class || '/' || commitment AS fleet,
        category = 'Usage' AND status IS DISTINCT FROM 'Unused' AS consumed,
        -- A correction may be of the price: it has none of its own, and costs at list what it corrects the cost by.
        CASE WHEN correction THEN (billed_nano + CASE WHEN committed THEN effective_nano ELSE 0 END) * 1000 END
            AS corrected_pico
    FROM line AS l
    JOIN part AS i ON i.part = l.part
)
SELECT
    usd_nano(billed_nano) AS BilledCost,
    'rose/' || book_name AS BillingAccountId,
    book_name AS BillingAccountName,
    currency AS BillingCurrency,
    instant(billing_to) AS BillingPeriodEnd,
    instant(billing_from) AS BillingPeriodStart,
    category AS ChargeCategory,
    CASE WHEN correction THEN 'Correction' END AS ChargeClass,
    description AS ChargeDescription,
    frequency AS ChargeFrequency,
    instant(hour + INTERVAL 1 HOUR) AS ChargePeriodEnd,
    instant(hour) AS ChargePeriodStart,
    CASE WHEN committed THEN 'Usage' END AS CommitmentDiscountCategory,
    CASE WHEN committed THEN fleet END AS CommitmentDiscountId,
    CASE WHEN committed THEN 'Fleet of ' || device_class || ', ' || commitment END AS CommitmentDiscountName,
    CASE WHEN committed AND NOT correction THEN pico(quantity_pico) END AS CommitmentDiscountQuantity,
    status AS CommitmentDiscountStatus,
    CASE WHEN committed THEN commitment END AS CommitmentDiscountType,
    CASE WHEN committed AND NOT correction THEN unit END AS CommitmentDiscountUnit,
    CASE WHEN consumed THEN pico(quantity_pico) END AS ConsumedQuantity,
    CASE WHEN consumed THEN unit END AS ConsumedUnit,
    pico(coalesce(corrected_pico, rounded(price_pico * quantity_pico, 1000000000000))) AS ContractedCost,
    CASE WHEN NOT correction THEN pico(price_pico) END AS ContractedUnitPrice,
    usd_nano(effective_nano) AS EffectiveCost,
    invoice_id AS InvoiceId,
    'ROSE' AS InvoiceIssuerName,
    pico(coalesce(corrected_pico, rounded(price_pico * quantity_pico, 1000000000000))) AS ListCost,
    CASE WHEN NOT correction THEN pico(price_pico) END AS ListUnitPrice,
    CASE WHEN committed AND category = 'Usage' THEN 'Committed' ELSE 'Standard' END AS PricingCategory,
    CASE WHEN NOT correction THEN pico(quantity_pico) END AS PricingQuantity,
    CASE WHEN NOT correction THEN unit END AS PricingUnit,
    'ROSE' AS ProviderName,
    'ROSE' AS PublisherName,
    CASE WHEN category = 'Purchase' OR status = 'Unused' THEN fleet ELSE hardware_id END AS ResourceId,
    CASE WHEN category = 'Usage' AND status IS DISTINCT FROM 'Unused' THEN device_id END AS ResourceName,
    CASE WHEN category = 'Purchase' OR status = 'Unused' THEN 'Fleet' ELSE device_class END AS ResourceType,
    'AI and Machine Learning' AS ServiceCategory,
    'ROSE co-serving' AS ServiceName,
    'Generative AI' AS ServiceSubcategory,
    sku_id AS SkuId,
    meter AS SkuMeter,
    json_object('x_PriceBook', book_name || ' ' || book_version)::VARCHAR AS SkuPriceDetails,
    coalesce(price_id, book_name || '/' || book_version || '/' || sku_id) AS SkuPriceId,
    team AS SubAccountId,
    team AS SubAccountName,
    json_merge_patch(coalesce(r.tags_json, '{}'), tags)::VARCHAR AS Tags,
    bucket AS x_CostBucket,
    CASE WHEN NOT correction THEN pico(price_pico) END AS x_EffectiveUnitPrice,
    usd_nano(marginal_nano) AS x_MarginalCost,
    lease_id AS x_LeaseId,
    run_id AS x_RunId,
    policy_version AS x_PolicyVersion,
    book_name || ' ' || book_version || ' sha256:' || book_sha256 AS x_PriceBookVersion,
    ledger_seq AS x_LedgerSeq,
    provenance || CASE WHEN getvariable('verified') THEN '' ELSE ', UNVERIFIED' END
        || CASE WHEN getvariable('example') THEN ', EXAMPLE PRICES, not yours' ELSE '' END AS x_Provenance
FROM listed
LEFT JOIN run_tag AS r USING (run_id)
ORDER BY part, hour, section, n;
