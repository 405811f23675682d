-- The devices that charges are of.
SELECT
    run_id, provenance, nullif(device_id, '') AS device_id, hardware_id, pool, device_class, team AS run_team,
    device_team
FROM stay
WHERE asked
ORDER BY rank;
