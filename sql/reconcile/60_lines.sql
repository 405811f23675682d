-- What the ledger and the invoice come to for each thing, those first that differ most.
WITH shown AS (
    FROM line_sum ORDER BY abs(effective_nano - ledger_nano) DESC, line LIMIT getvariable('rows_shown')
)
SELECT
    l.kind, l.name, l.item,
    coalesce((
        SELECT list(DISTINCT g.device_id ORDER BY g.device_id)[:3] FROM grouped AS g
        WHERE g.kind = l.kind AND g.name = l.name
    ), []) AS device_ids,
    s.* EXCLUDE (line)
FROM shown AS s
JOIN line AS l USING (line)
ORDER BY abs(s.effective_nano - s.ledger_nano) DESC, line;
