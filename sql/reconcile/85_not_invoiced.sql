-- What the ledger charges beside device time and the invoice has nothing of.
SELECT item, sum(cost_nano)::HUGEINT AS ledger_nano
FROM ledger_day
WHERE item <> 'device time' AND item NOT IN (SELECT item FROM matched)
GROUP BY item
HAVING sum(cost_nano) <> 0
ORDER BY item;
