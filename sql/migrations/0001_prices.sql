CREATE TABLE price_book (
    sha256 VARCHAR PRIMARY KEY,
    name VARCHAR NOT NULL,
    version VARCHAR NOT NULL,
    currency VARCHAR NOT NULL,
    toml VARCHAR NOT NULL,
    loaded_at TIMESTAMP NOT NULL
);
COMMENT ON TABLE price_book IS 'Every price book that priced a day, whole.';
COMMENT ON COLUMN price_book.sha256 IS 'SHA-256 of the text of the file.';
COMMENT ON COLUMN price_book.toml IS 'The text of the file.';
COMMENT ON COLUMN price_book.loaded_at IS 'When it was first used here, UTC.';

CREATE TABLE price_day (
    "day" DATE NOT NULL,
    run_id VARCHAR NOT NULL,
    provenance VARCHAR NOT NULL,
    device_id VARCHAR NOT NULL,
    device_class VARCHAR NOT NULL,
    bucket VARCHAR NOT NULL,
    book_sha256 VARCHAR NOT NULL,
    ns BIGINT NOT NULL,
    cost_nano BIGINT NOT NULL,
    PRIMARY KEY ("day", run_id, provenance, device_id, bucket)
);
COMMENT ON TABLE price_day IS
    'Amortized cost of device time, one row for each device, UTC day and bucket; the buckets of a day sum exactly to the device''s cost of that day.';
COMMENT ON COLUMN price_day."day" IS 'UTC day.';
COMMENT ON COLUMN price_day.provenance IS 'live, replay or simulated; never mix them in one figure.';
COMMENT ON COLUMN price_day.device_class IS 'The class the price book knows the device by.';
COMMENT ON COLUMN price_day.bucket IS 'serving, rollout, train, sync, activation, headroom or idle.';
COMMENT ON COLUMN price_day.book_sha256 IS 'The price book that gave this price first.';
COMMENT ON COLUMN price_day.ns IS 'Device time, nanoseconds.';
COMMENT ON COLUMN price_day.cost_nano IS 'Cost in billionths of the price book''s currency.';

CREATE TABLE report_export (
    folder VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    status VARCHAR NOT NULL,
    ended_at TIMESTAMP,
    file VARCHAR,
    book_sha256 VARCHAR NOT NULL,
    refused VARCHAR,
    exported_at TIMESTAMP NOT NULL,
    PRIMARY KEY (folder, run_id)
);
COMMENT ON TABLE report_export IS 'The newest cost report of each run in each folder of reports.';
COMMENT ON COLUMN report_export.status IS 'Of the run when it was reported: running, ended or failed.';
COMMENT ON COLUMN report_export.ended_at IS 'When the run ended, UTC; NULL while it ran.';
COMMENT ON COLUMN report_export.file IS 'Name of the JSON file in the folder; the CSV file beside it has the same name but for its end. NULL if refused.';
COMMENT ON COLUMN report_export.refused IS 'Why no report could be made, in words.';
COMMENT ON COLUMN report_export.exported_at IS 'When it was written, UTC.';
