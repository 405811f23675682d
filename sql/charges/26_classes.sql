-- Time in the period for which the same hardware is held as two classes.
WITH several AS (
    SELECT hardware FROM stay WHERE joined GROUP BY hardware HAVING count(DISTINCT device_class) > 1
),
owned AS (
    SELECT *
    FROM in_period
    JOIN stay USING (unit)
    SEMI JOIN several USING (hardware)
)
SELECT
    a.hardware_id, greatest(a.t0_ns, b.t0_ns) AS t0_ns, least(a.t1_ns, b.t1_ns) AS t1_ns,
    a.run_id, a.device_id, a.device_class,
    b.run_id AS other_run_id, b.device_id AS other_device_id, b.device_class AS other_device_class
FROM owned AS a
JOIN owned AS b
    ON a.hardware = b.hardware AND a.rank < b.rank AND a.device_class <> b.device_class
    AND a.t0_ns < b.t1_ns AND b.t0_ns < a.t1_ns
ORDER BY ALL
LIMIT 20;
