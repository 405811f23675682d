-- Put the prices of days into the books: one row for each element of the lists, which are of one length.
INSERT INTO price_day ("day", run_id, provenance, device_id, device_class, bucket, book_sha256, ns, cost_nano)
SELECT
    unnest($day::DATE[]), unnest($run_id::VARCHAR[]), unnest($provenance::VARCHAR[]), unnest($device_id::VARCHAR[]),
    unnest($device_class::VARCHAR[]), unnest($bucket::VARCHAR[]), $book_sha256, unnest($ns::BIGINT[]),
    unnest($cost_nano::BIGINT[]);
