-- The ledger beside the invoice on each day of [block_from, block_to), by line: `cell`. Amounts are whole nano-units of
-- the ledger's currency, of which a unit of the invoice's is `rate_numerator` / `rate_denominator`.
CREATE OR REPLACE TEMP MACRO nano(pico) AS
    sign(pico) * ((2 * abs(pico::HUGEINT) * getvariable('rate_numerator') + 1000 * getvariable('rate_denominator'))
        // (2000 * getvariable('rate_denominator')));
INSERT INTO cell
WITH billed AS (
    SELECT
        t.line, i.day, nano(sum(i.billed_pico)) AS billed_nano, nano(sum(i.effective_pico)) AS effective_nano,
        CASE WHEN t.has_hours THEN sum(i.ns * t.devices) END AS invoice_ns,
        t.has_hours AND count(*) > count(i.ns) AS hours_unknown,
        nano(sum(i.again_pico)) AS again_nano, nano(sum(i.corrections_pico)) AS corrections_nano
    FROM invoice_day AS i
    JOIN line_thing AS t ON t.thing = i.thing AND i.day >= t.from_day AND i.day < t.to_day
    WHERE i.day >= getvariable('block_from') AND i.day < getvariable('block_to')
    GROUP BY t.line, t.has_hours, i.day
),
charged AS (
    SELECT l.line, c.day, c.ledger_nano, c.ledger_ns
    FROM charged_day AS c
    JOIN line AS l USING (kind, name, item)
    WHERE c.day >= getvariable('block_from') AND c.day < getvariable('block_to')
)
SELECT
    line, day, ledger_nano IS NOT NULL AS in_ledger, effective_nano IS NOT NULL AS in_invoice,
    coalesce(ledger_nano, 0) AS ledger_nano, coalesce(ledger_ns, 0) AS ledger_ns,
    coalesce(billed_nano, 0) AS billed_nano,
    coalesce(effective_nano, 0) AS effective_nano, coalesce(invoice_ns, 0) AS invoice_ns,
    coalesce(hours_unknown, false) AS hours_unknown, coalesce(again_nano, 0) AS again_nano,
    coalesce(corrections_nano, 0) AS corrections_nano
FROM billed
FULL JOIN charged USING (line, day);
