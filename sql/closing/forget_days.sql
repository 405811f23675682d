-- Remove what the books say of the days in `$day`, `$run_id`, `$provenance` and `$device_id`, lists of one length.
DELETE FROM price_day
WHERE ("day", run_id, provenance, device_id) IN (
    SELECT unnest($day::DATE[]), unnest($run_id::VARCHAR[]),
        unnest($provenance::VARCHAR[]), unnest($device_id::VARCHAR[])
);
