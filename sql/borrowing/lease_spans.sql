-- The stretches between price changes, `stretch`, and when serving devices were leased, cut at these, `lease_span`:
-- [t0_ns, t1_ns). An open lease counts up to its expiry, `period_end_ns` or the last slice that names it: that is the
-- last that its agent said; where no slice does, up to the run's end. One that several RL runs had is there with each
-- part that was the run's own. The class is NULL for a device that the ledger does not know. Reads the table
-- `lease_part`, which `time_on_fleet` makes.
-- Then leased time by device class and stretch: all of it, and with the number of a `span` that inside the spans in
-- which a device would have been given back to its owner had it not been lent: three lists hold an entry for each span.
-- By hand: SET VARIABLE run_id = '...'; SET VARIABLE period_end_ns = 0; SET VARIABLE price_changes = []::BIGINT[];
-- SET VARIABLE span_device = ['...']; SET VARIABLE span_from = [0::BIGINT]; SET VARIABLE span_to = [0::BIGINT];
CREATE OR REPLACE TEMP TABLE stretch AS
WITH edge AS (
    SELECT list_concat([0], getvariable('price_changes')::BIGINT[], [9223372036854775807]) AS edges
)
SELECT n - 1 AS segment, edges[n] AS from_ns, edges[n + 1] AS to_ns
FROM edge, unnest(range(1, len(edges))) AS numbers(n);

CREATE OR REPLACE TEMP TABLE lease_span AS
WITH last AS (
    SELECT lease_id, max(t1_ns) AS last_ns FROM device_slice
    WHERE run_id = getvariable('run_id') AND lease_id IS NOT NULL
    GROUP BY lease_id
),
held AS (
    SELECT
        l.lease_id, l.device_id, greatest(epoch_ns(granted_at), p.from_ns) AS t0_ns,
        -- `least` passes over NULL.
        least(
            coalesce(
                epoch_ns(closed_at),
                least(
                    epoch_ns(expires_at), getvariable('period_end_ns'),
                    coalesce(p.last_ns, last.last_ns, epoch_ns(r.ended_at))
                )
            ),
            p.to_ns
        ) AS t1_ns
    FROM lease AS l
    LEFT JOIN lease_part AS p ON p.run_id = l.fleet_run_id AND p.lease_id = l.lease_id
    LEFT JOIN last ON l.run_id = l.fleet_run_id AND last.lease_id = l.lease_id
    LEFT JOIN run AS r ON r.run_id = l.run_id AND r.provenance = l.provenance
    WHERE l.run_id = getvariable('run_id') AND granted_at IS NOT NULL
)
SELECT
    h.lease_id, h.device_id, c.device_class, s.segment,
    greatest(h.t0_ns, s.from_ns) AS t0_ns, least(h.t1_ns, s.to_ns) AS t1_ns
FROM held AS h
JOIN stretch AS s ON h.t0_ns < s.to_ns AND s.from_ns < h.t1_ns
ASOF LEFT JOIN (SELECT device_id, device_class, since_ns FROM tenure WHERE run_id = getvariable('run_id')) AS c
    ON h.device_id = c.device_id AND h.t0_ns >= c.since_ns
WHERE h.t1_ns > h.t0_ns;

WITH kept AS (
    SELECT
        unnest(range(len(getvariable('span_from')))) AS span,
        unnest(getvariable('span_device')::VARCHAR[]) AS device_id,
        unnest(getvariable('span_from')::BIGINT[]) AS from_ns,
        unnest(getvariable('span_to')::BIGINT[]) AS to_ns
)
SELECT NULL AS span, device_class, segment, CAST(sum(t1_ns - t0_ns) AS BIGINT) AS leased_ns
FROM lease_span
GROUP BY ALL
UNION ALL
SELECT span, device_class, segment, CAST(sum(least(t1_ns, to_ns) - greatest(t0_ns, from_ns)) AS BIGINT)
FROM kept
JOIN lease_span USING (device_id)
WHERE t0_ns < to_ns AND from_ns < t1_ns AND device_class IS NOT NULL
GROUP BY ALL
ORDER BY ALL;
