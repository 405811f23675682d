-- Prices that the hours in `todo` need: a class and pool, or a route, or neither, on a day (days since the epoch).
SELECT DISTINCT 'device' AS what, device_class, pool, NULL AS route, day FROM device_hour
UNION ALL BY NAME
SELECT DISTINCT 'transfer' AS what, route, hour // 24 AS day
FROM sent
SEMI JOIN todo USING (unit, hour)
UNION ALL BY NAME
SELECT DISTINCT 'energy' AS what, hour // 24 AS day
FROM metered
SEMI JOIN todo USING (unit, hour)
UNION ALL BY NAME
SELECT DISTINCT 'tokens' AS what, hour // 24 AS day
FROM made
SEMI JOIN todo USING (unit, hour)
ORDER BY ALL;
