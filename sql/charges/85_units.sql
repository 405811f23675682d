-- The devices that charges are of.
SELECT run_id, provenance, nullif(device_id, '') AS device_id, pool, device_class, team AS run_team, device_team
FROM stay
ORDER BY stay.run_id, stay.device_id;
