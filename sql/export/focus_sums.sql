-- Sums of the view `focus`, one row each: `effective` by bucket, `billed` and `purchased`.
-- Nano-dollars.
SELECT x_CostBucket AS bucket, nano(sum(EffectiveCost)) AS effective, nano(sum(BilledCost)) AS billed, count(*) AS rows
FROM focus
GROUP BY x_CostBucket
ORDER BY x_CostBucket NULLS FIRST;
