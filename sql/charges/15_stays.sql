-- Devices of the runs that are asked for, and their provisioned time [joined_ns, end_ns), NULL where none joined. One
-- that has not left counts up to its last slice while its run goes on, and at least up to the run's end once that is
-- over. [t0_ns, t1_ns) is what lies in the period.
CREATE OR REPLACE TEMP TABLE stay AS
WITH last AS (
    SELECT unit, max(t_ns) AS t1_ns FROM edge WHERE kind = 'device_slice' GROUP BY unit
),
whole AS (
    SELECT
        u.*, coalesce(d.pool, 'unallocated') AS pool, coalesce(d.device_class, 'unallocated') AS device_class,
        d.joined_ns,
        -- greatest() passes over NULL.
        greatest(d.joined_ns, coalesce(d.left_ns, greatest(last.t1_ns, 1000 * epoch_us(r.ended_at)))) AS end_ns,
        CASE WHEN d.joined_ns IS NOT NULL AND json_valid(r.tags_json) THEN r.tags_json END AS tags_json
    FROM unit AS u
    LEFT JOIN (FROM device WHERE joined_ns IS NOT NULL) AS d USING (run_id, provenance, device_id)
    LEFT JOIN run AS r USING (run_id, provenance)
    LEFT JOIN last USING (unit)
    WHERE getvariable('run_id') IS NULL OR u.run_id = getvariable('run_id')
)
SELECT
    *,
    CASE WHEN joined_ns IS NOT NULL THEN greatest(joined_ns, getvariable('from_ns')) END AS t0_ns,
    least(end_ns, getvariable('to_ns')) AS t1_ns,
    coalesce(nullif(tags_json ->> '$.team', ''), 'unallocated') AS team,
    CASE WHEN pool = 'serving' THEN coalesce(nullif(tags_json ->> '$.serving_team', ''), 'unallocated')
         ELSE coalesce(nullif(tags_json ->> '$.team', ''), 'unallocated') END AS device_team
FROM whole;
