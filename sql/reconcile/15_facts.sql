-- What the rows of an invoice are in all: its currencies, the time of its charges, and the first of its numbers.
SELECT
    count(*) AS rows,
    coalesce(list(DISTINCT currency ORDER BY currency), []) AS currencies,
    strftime(min(begins), '%Y-%m-%dT%H:%M:%SZ') AS begins,
    strftime(max(ends), '%Y-%m-%dT%H:%M:%SZ') AS ends,
    (
        SELECT coalesce(list(invoice_id), [])
        FROM (SELECT DISTINCT invoice_id FROM invoice_row WHERE invoice_id IS NOT NULL ORDER BY invoice_id LIMIT 5)
    ) AS invoice_ids
FROM invoice_row;
