-- Add to `invoice_day` what rows of more than a day have of the days [block_from, block_to). A row is cut by time; its
-- last part takes what rounding leaves, so that parts add up to the row.
INSERT INTO invoice_day
WITH spread AS (
    SELECT
        *,
        unnest(
            range(
                date_trunc('day', greatest(begins, getvariable('block_from'))), least(ends, getvariable('block_to')),
                INTERVAL 1 DAY
            )
        ) AS day
    FROM long_row
    WHERE begins < getvariable('block_to') AND ends > getvariable('block_from')
)
SELECT
    thing, day, sum(part(billed_pico, day, begins, ends)), sum(part(effective_pico, day, begins, ends)),
    CASE WHEN count(*) = count(ns) THEN sum(part(ns, day, begins, ends)) END,
    coalesce(sum(part(effective_pico, day, begins, ends)) FILTER (repeated), 0),
    coalesce(sum(part(effective_pico, day, begins, ends)) FILTER (correction), 0)
FROM spread
GROUP BY thing, day;
