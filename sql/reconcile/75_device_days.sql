-- Single days of a thing that differ by more than the tolerance, those first that differ most.
WITH apart AS (
    FROM cell
    WHERE abs(effective_nano - ledger_nano) > getvariable('tolerance') * abs(ledger_nano)
    ORDER BY abs(effective_nano - ledger_nano) DESC, day, line
    LIMIT getvariable('rows_shown')
)
SELECT
    day::DATE AS day, l.kind, l.name, l.item, ledger_nano::HUGEINT AS ledger_nano, ledger_ns::HUGEINT AS ledger_ns,
    billed_nano::HUGEINT AS billed_nano, effective_nano::HUGEINT AS effective_nano,
    CASE WHEN NOT hours_unknown THEN invoice_ns END::HUGEINT AS invoice_ns, again_nano::HUGEINT AS again_nano,
    corrections_nano::HUGEINT AS corrections_nano
FROM apart AS a
JOIN line AS l USING (line)
ORDER BY abs(effective_nano - ledger_nano) DESC, day, line;
