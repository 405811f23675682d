-- The first rows that repeat another one, and how many there are.
SELECT row, first, count(*) OVER () AS count FROM again ORDER BY row LIMIT 10;
