-- What the days of each line come to, of the lines from `line_from` to before `line_to`: `line_sum`.
INSERT INTO line_sum
SELECT
    line,
    count(*) FILTER (in_ledger AND in_invoice) AS days_both,
    count(*) FILTER (in_ledger AND NOT in_invoice) AS days_ledger,
    count(*) FILTER (NOT in_ledger AND in_invoice) AS days_invoice,
    sum(ledger_nano) AS ledger_nano, sum(ledger_ns) AS ledger_ns, sum(billed_nano) AS billed_nano,
    sum(effective_nano) AS effective_nano, CASE WHEN NOT bool_or(hours_unknown) THEN sum(invoice_ns) END AS invoice_ns,
    sum(again_nano) AS again_nano, sum(corrections_nano) AS corrections_nano
FROM cell
WHERE line >= getvariable('line_from') AND line < getvariable('line_to')
GROUP BY line;
