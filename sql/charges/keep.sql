-- The charges of the hours in `todo` stand from now on.
INSERT INTO charge BY NAME
WITH row AS (
    SELECT *, 'capacity' AS kind FROM time_row WHERE bucket <> 'rollout'
    UNION ALL BY NAME
    SELECT *, 'capacity' AS kind FROM rollout_row
    UNION ALL BY NAME
    SELECT *, kind AS bucket FROM invoiced
)
SELECT
    * EXCLUDE (team, device_team, cause, ns, tokens, bytes, energy_mw_ns),
    CASE WHEN bucket IN ('serving', 'headroom', 'idle', 'unaccounted') THEN device_team ELSE team END AS team,
    CASE WHEN bucket <> 'idle' THEN cause
         WHEN pool = 'serving' AND lease_id IS NULL THEN 'could have been lent'
         ELSE 'could not be lent' END AS cause,
    coalesce(ns, 0) AS ns, coalesce(tokens, 0) AS tokens, coalesce(bytes, 0) AS bytes,
    coalesce(energy_mw_ns, 0) AS energy_mw_ns
FROM row;
INSERT INTO priced FROM todo;
