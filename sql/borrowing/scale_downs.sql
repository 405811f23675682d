-- Decisions on the fleet's size in which lending had a part: serving devices kept to be lent, dedicated ones let
-- go. `known_class`: some run of the ledger had the device as one of this class.
-- By hand: SET VARIABLE run_id = '...';
SELECT DISTINCT
    device_id, decision, t0_ns, t1_ns, device_class,
    EXISTS (
        FROM ledger.tenure AS t
        WHERE t.device_id = s.device_id AND t.provenance = s.provenance AND t.device_class = s.device_class
    ) AS known_class
FROM scale_down AS s
WHERE run_id = getvariable('run_id') AND t0_ns < t1_ns
ORDER BY ALL;
