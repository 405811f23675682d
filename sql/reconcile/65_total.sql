-- Everything that is compared, and what the lines differ by, whichever side has more.
WITH line AS (SELECT sum(effective_nano) - sum(ledger_nano) AS difference FROM cell GROUP BY kind, name, item)
SELECT
    (SELECT count(*) FROM line) AS line_count,
    (SELECT coalesce(sum(abs(difference)), 0)::HUGEINT FROM line) AS disagreement_nano,
    coalesce(sum(ledger_nano), 0)::HUGEINT AS ledger_nano, coalesce(sum(ledger_ns), 0)::HUGEINT AS ledger_ns,
    coalesce(sum(billed_nano), 0)::HUGEINT AS billed_nano, coalesce(sum(effective_nano), 0)::HUGEINT AS effective_nano,
    CASE WHEN NOT bool_or(hours_unknown) THEN sum(invoice_ns) END::HUGEINT AS invoice_ns,
    coalesce(sum(again_nano), 0)::HUGEINT AS again_nano,
    coalesce(sum(corrections_nano), 0)::HUGEINT AS corrections_nano
FROM cell;
