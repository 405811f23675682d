-- Hours of the fleet in the view `focus` of which the purchase is not used up to the last digit by the usage, used and
-- unused, that carries its cost; or whose hours are not those of the usage. FOCUS demands it, and validators that look
-- at one row at a time cannot see it. `first` is the first row of the hour.
SELECT
    min(row) AS first, InvoiceId, ChargePeriodStart, CommitmentDiscountId, x_RunId,
    coalesce(sum(BilledCost) FILTER (ChargeCategory = 'Purchase'), 0) AS purchased,
    coalesce(sum(EffectiveCost) FILTER (ChargeCategory = 'Usage'), 0) AS used,
    coalesce(sum(CommitmentDiscountQuantity) FILTER (ChargeCategory = 'Purchase'), 0) AS purchased_hours,
    coalesce(sum(CommitmentDiscountQuantity) FILTER (ChargeCategory = 'Usage'), 0) AS used_hours
FROM focus
WHERE CommitmentDiscountId IS NOT NULL
GROUP BY InvoiceId, ChargeClass, ChargePeriodStart, CommitmentDiscountId, x_RunId, x_Provenance
HAVING purchased <> used OR abs(purchased_hours - used_hours) > count(*) * 0.000000000001
ORDER BY first
LIMIT 20;
