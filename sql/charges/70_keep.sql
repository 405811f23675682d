-- The charges of the hours in `todo` stand from now on. `place`: their order within an hour of a device.
INSERT INTO charge BY NAME
WITH row AS (
    FROM time_row WHERE position <> 1
    UNION ALL BY NAME
    FROM rollout_row
    UNION ALL BY NAME
    FROM invoiced
)
SELECT
    * EXCLUDE (ns, tokens, bytes, energy_mw_ns),
    row_number() OVER (
        ORDER BY
            lease_id NULLS FIRST, position, rl_run_id NULLS FIRST, policy_version NULLS FIRST, task NULLS FIRST,
            fate NULLS FIRST, cause NULLS FIRST, route NULLS FIRST
    ) AS place,
    coalesce(ns, 0) AS ns, coalesce(tokens, 0) AS tokens, coalesce(bytes, 0) AS bytes,
    coalesce(energy_mw_ns, 0) AS energy_mw_ns
FROM row;
INSERT INTO priced FROM todo;
