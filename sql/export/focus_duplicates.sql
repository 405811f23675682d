-- Rows of the view `focus` that charge for the same thing as one before them. Candidates share a hash.
WITH keyed AS (
    SELECT
        row,
        hash(
            InvoiceId, ChargeClass, ChargeCategory, ChargePeriodStart, SkuPriceId, CommitmentDiscountId,
            CommitmentDiscountStatus, ResourceId, SubAccountId, Tags, x_CostBucket, x_LeaseId, x_RunId, x_PolicyVersion,
            x_Provenance
        ) AS key
    FROM focus
)
SELECT min(f.row) AS first, min(f.row, 6)[2:] AS again, count(*) - 1 AS rows
FROM focus AS f
JOIN keyed AS k ON k.row = f.row
WHERE k.key IN (SELECT key FROM keyed GROUP BY key HAVING count(*) > 1)
GROUP BY
    InvoiceId, ChargeClass, ChargeCategory, ChargePeriodStart, SkuPriceId, CommitmentDiscountId,
    CommitmentDiscountStatus, ResourceId, SubAccountId, Tags, x_CostBucket, x_LeaseId, x_RunId, x_PolicyVersion,
    x_Provenance
HAVING count(*) > 1
ORDER BY first
LIMIT 20;
