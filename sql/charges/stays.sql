-- Provisioned time of each device, [joined_ns, end_ns). A device that has not left counts up to its last slice while
-- its run goes on, and at least up to the run's end once that is over. [t0_ns, t1_ns) is what lies in the period.
CREATE OR REPLACE TEMP TABLE stay AS
WITH last AS (
    SELECT run_id, provenance, device_id, max(t_ns) AS t1_ns
    FROM edge
    WHERE kind = 'device_slice'
    GROUP BY ALL
),
whole AS (
    SELECT
        d.run_id, d.provenance, d.device_id, d.pool, d.device_class, d.joined_ns,
        -- greatest() passes over NULL.
        greatest(d.joined_ns, coalesce(d.left_ns, greatest(last.t1_ns, 1000 * epoch_us(r.ended_at)))) AS end_ns,
        CASE WHEN json_valid(r.tags_json) THEN r.tags_json END AS tags_json
    FROM device AS d
    LEFT JOIN run AS r USING (run_id, provenance)
    LEFT JOIN last USING (run_id, provenance, device_id)
    WHERE d.joined_ns IS NOT NULL
      AND (getvariable('run_id') IS NULL OR d.run_id = getvariable('run_id'))
)
SELECT
    *,
    greatest(joined_ns, getvariable('from_ns')) AS t0_ns,
    least(end_ns, getvariable('to_ns')) AS t1_ns,
    coalesce(nullif(tags_json ->> '$.team', ''), 'unallocated') AS team,
    CASE WHEN pool = 'serving' THEN coalesce(nullif(tags_json ->> '$.serving_team', ''), 'unallocated')
         ELSE coalesce(nullif(tags_json ->> '$.team', ''), 'unallocated') END AS device_team
FROM whole;
