-- What the ledger and the invoice come to for each thing, those first that differ most.
SELECT
    kind, name, item,
    coalesce((
        SELECT list(DISTINCT g.device_id ORDER BY g.device_id)[:3] FROM grouped AS g
        WHERE g.kind = c.kind AND g.name = c.name
    ), []) AS device_ids,
    count(*) FILTER (in_ledger AND in_invoice) AS days_both,
    count(*) FILTER (in_ledger AND NOT in_invoice) AS days_ledger,
    count(*) FILTER (NOT in_ledger AND in_invoice) AS days_invoice,
    sum(ledger_nano)::HUGEINT AS ledger_nano, sum(ledger_ns)::HUGEINT AS ledger_ns,
    sum(billed_nano)::HUGEINT AS billed_nano, sum(effective_nano)::HUGEINT AS effective_nano,
    CASE WHEN NOT bool_or(hours_unknown) THEN sum(invoice_ns) END::HUGEINT AS invoice_ns,
    sum(again_nano)::HUGEINT AS again_nano, sum(corrections_nano)::HUGEINT AS corrections_nano
FROM cell AS c
GROUP BY kind, name, item
ORDER BY abs(sum(effective_nano) - sum(ledger_nano)) DESC, kind, name, item
LIMIT getvariable('rows_shown');
