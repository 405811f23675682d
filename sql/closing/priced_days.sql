-- What the books say of every day, device and bucket. Read from `books.duckdb`.
SELECT "day", run_id, provenance, device_id, device_class, bucket, ns, cost_nano
FROM price_day
ORDER BY "day", run_id, provenance, device_id;
