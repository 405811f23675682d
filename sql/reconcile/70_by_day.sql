-- Both sides of each day.
SELECT
    day::DATE AS day, sum(ledger_nano)::HUGEINT AS ledger_nano, sum(ledger_ns)::HUGEINT AS ledger_ns,
    sum(billed_nano)::HUGEINT AS billed_nano, sum(effective_nano)::HUGEINT AS effective_nano,
    CASE WHEN NOT bool_or(hours_unknown) THEN sum(invoice_ns) END::HUGEINT AS invoice_ns,
    sum(again_nano)::HUGEINT AS again_nano, sum(corrections_nano)::HUGEINT AS corrections_nano
FROM cell
GROUP BY day
ORDER BY day;
