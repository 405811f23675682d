-- Leased time inside the spans in which a device would have been given back to its owner had it not been lent, by lease
-- if `by_lease`, device class, stretch between price changes and number of the span. The three lists hold one entry for
-- each span. Reads the table `lease_span`, which `lease_spans` makes.
-- By hand: SET VARIABLE by_lease = true; SET VARIABLE span_device = ['...']; SET VARIABLE span_from = [0::BIGINT];
-- SET VARIABLE span_to = [0::BIGINT];
WITH span AS (
    SELECT
        unnest(range(len(getvariable('span_from')))) AS span,
        unnest(getvariable('span_device')::VARCHAR[]) AS device_id,
        unnest(getvariable('span_from')::BIGINT[]) AS from_ns,
        unnest(getvariable('span_to')::BIGINT[]) AS to_ns
)
SELECT
    CASE WHEN getvariable('by_lease') THEN lease_id END AS lease_id,
    device_class,
    segment,
    span,
    CAST(sum(least(t1_ns, to_ns) - greatest(t0_ns, from_ns)) AS BIGINT) AS ns
FROM span
JOIN lease_span USING (device_id)
WHERE t0_ns < to_ns AND from_ns < t1_ns AND device_class IS NOT NULL
GROUP BY ALL
ORDER BY ALL;
