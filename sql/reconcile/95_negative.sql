-- The first rows of usage with a negative cost that say of themselves that they correct nothing.
SELECT row, least(billed, effective)::VARCHAR AS cell, count(*) OVER () AS count
FROM invoice_row
WHERE category = 'Usage' AND NOT correction AND least(billed, effective) < 0
ORDER BY row
LIMIT 10;
