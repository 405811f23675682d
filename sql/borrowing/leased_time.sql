-- Leased time of serving devices by device class and stretch between price changes, and by lease if `by_lease`. Reads
-- the table `lease_span`, which `lease_spans` makes.
-- By hand: SET VARIABLE by_lease = true;
SELECT
    CASE WHEN getvariable('by_lease') THEN lease_id END AS lease_id,
    device_class,
    segment,
    CAST(sum(t1_ns - t0_ns) AS BIGINT) AS leased_ns
FROM lease_span
GROUP BY ALL
ORDER BY ALL;
