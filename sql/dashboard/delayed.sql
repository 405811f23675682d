-- By how much serving's steps were delayed beyond the rollout work beside them in [from_ns, to_ns), over all devices; 0
-- where nothing ran beside serving, or the ledger is from before that. A slice counts where it begins.
-- By hand: SET VARIABLE provenance = 'live'; SET VARIABLE from_ns = 0; SET VARIABLE to_ns = 1793491200000000000;
SELECT coalesce(sum(delayed_ns - beside_work_ns), 0)::BIGINT AS ns
FROM device_slice
WHERE provenance = getvariable('provenance')
  AND t0_ns >= getvariable('from_ns') AND t0_ns < getvariable('to_ns');
