-- Whose the charges are: devices, each of its own run, and of RL runs that share it. A device's time that no RL run has
-- is its team's, and an RL run's is that of its own tags, else of what the price book tags the device with.
SELECT
    coalesce(p.rl_run_id, s.run_id) AS run_id, s.run_id AS fleet_run_id, s.provenance,
    nullif(s.device_id, '') AS device_id, s.hardware_id, s.pool, s.device_class,
    CASE WHEN p.rl_run_id IS NULL THEN s.team ELSE coalesce(
        CASE WHEN json_valid(r.tags_json) THEN nullif(r.tags_json ->> '$.team', '') END, s.tagged_team, 'unallocated'
    ) END AS run_team,
    s.device_team
FROM payer AS p
JOIN stay AS s USING (unit)
LEFT JOIN run AS r ON p.rl_run_id = r.run_id AND s.provenance = r.provenance
ORDER BY payer_row;
