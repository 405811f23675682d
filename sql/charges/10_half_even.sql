-- n / d as a whole number, half to even; for n >= 0 and d > 0.
CREATE OR REPLACE TEMP MACRO half_even(n, d) AS (
    n // d + CASE WHEN 2 * (n % d) > d OR (2 * (n % d) = d AND (n // d) % 2 = 1) THEN 1 ELSE 0 END
);
