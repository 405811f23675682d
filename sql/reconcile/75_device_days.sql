-- Single days of a thing that differ by more than the tolerance, those first that differ most.
SELECT
    day::DATE AS day, kind, name, item, ledger_nano::HUGEINT AS ledger_nano, ledger_ns::HUGEINT AS ledger_ns,
    billed_nano::HUGEINT AS billed_nano, effective_nano::HUGEINT AS effective_nano,
    CASE WHEN NOT hours_unknown THEN invoice_ns END::HUGEINT AS invoice_ns, again_nano::HUGEINT AS again_nano,
    corrections_nano::HUGEINT AS corrections_nano
FROM cell
WHERE abs(effective_nano - ledger_nano) > getvariable('tolerance') * abs(ledger_nano)
ORDER BY abs(effective_nano - ledger_nano) DESC, day, kind, name, item
LIMIT getvariable('rows_shown');
