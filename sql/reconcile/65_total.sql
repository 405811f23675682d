-- Everything that is compared, and what the lines differ by, whichever side has more.
SELECT
    count(*) AS line_count, coalesce(sum(abs(effective_nano - ledger_nano)), 0)::HUGEINT AS disagreement_nano,
    coalesce(sum(ledger_nano), 0)::HUGEINT AS ledger_nano, coalesce(sum(ledger_ns), 0)::HUGEINT AS ledger_ns,
    coalesce(sum(billed_nano), 0)::HUGEINT AS billed_nano, coalesce(sum(effective_nano), 0)::HUGEINT AS effective_nano,
    CASE WHEN count(*) = count(invoice_ns) THEN sum(invoice_ns) END::HUGEINT AS invoice_ns,
    coalesce(sum(again_nano), 0)::HUGEINT AS again_nano,
    coalesce(sum(corrections_nano), 0)::HUGEINT AS corrections_nano
FROM line_sum;
