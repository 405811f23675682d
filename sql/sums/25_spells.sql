-- Spells of the new events' devices: each is in one pool and class, on one hardware. The first spell begins with time,
-- and the last spell ends with it. `resplit` has the spells by which events added before must be split again.
CREATE OR REPLACE TEMP TABLE spell AS
WITH change AS (
    SELECT
        run_id, provenance, device_id, joined_ns,
        lag(joined_ns) OVER device IS NULL AS first_one,
        (pool, device_class, hardware_id) IS DISTINCT FROM lag((pool, device_class, hardware_id)) OVER device AS changed
    FROM tenure
    SEMI JOIN (FROM new_event WHERE kind = 'device') USING (run_id, provenance, device_id)
    WINDOW device AS (PARTITION BY run_id, provenance, device_id ORDER BY joined_ns)
)
SELECT
    run_id, provenance, device_id,
    CASE WHEN first_one THEN 0 ELSE joined_ns END AS since_ns,
    lead(joined_ns, 1, 9223372036854775807) OVER (
        PARTITION BY run_id, provenance, device_id ORDER BY joined_ns
    ) AS until_ns
FROM change
WHERE first_one OR changed;
CREATE OR REPLACE TEMP TABLE resplit AS
FROM spell
SEMI JOIN unit USING (run_id, provenance, device_id)
ANTI JOIN unit AS known USING (run_id, provenance, device_id, since_ns, until_ns);
