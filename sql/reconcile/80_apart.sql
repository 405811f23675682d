-- What the invoice has beside the charges that are compared: first that of days outside of the period, whatever it is,
-- then that of each other category.
WITH whole_file AS (
    SELECT
        count(*) FILTER (begins < getvariable('from_day') OR ends > getvariable('to_day')) AS rows,
        coalesce(sum(whole(billed)), 0) AS billed_pico, coalesce(sum(whole(effective)), 0) AS effective_pico
    FROM invoice_row
),
inside AS (
    SELECT
        coalesce(sum(billed_pico), 0) AS billed_pico,
        coalesce(sum(effective_pico), 0) AS effective_pico
    FROM invoice_day
),
listed AS (
    SELECT category, count(*) AS rows
    FROM invoice_row
    WHERE begins < getvariable('to_day') AND ends > getvariable('from_day') AND NOT is_compared(category, effective)
    GROUP BY category
),
summed AS (
    SELECT category, sum(billed_pico) AS billed_pico, sum(effective_pico) AS effective_pico
    FROM invoice_day
    JOIN thing USING (thing)
    WHERE NOT compared
    GROUP BY category
)
SELECT category, rows, nano(billed_pico)::HUGEINT AS billed_nano, nano(effective_pico)::HUGEINT AS effective_nano
FROM (
    SELECT
        0 AS place, 'outside the period' AS category, w.rows, w.billed_pico - i.billed_pico AS billed_pico,
        w.effective_pico - i.effective_pico AS effective_pico
    FROM whole_file AS w, inside AS i
    UNION ALL
    SELECT 1, category, l.rows, s.billed_pico, s.effective_pico FROM listed AS l JOIN summed AS s USING (category)
)
ORDER BY place, category;
