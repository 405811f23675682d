CREATE TABLE closed_posting (
    close_id VARCHAR NOT NULL,
    correction INTEGER NOT NULL,
    provenance VARCHAR NOT NULL,
    from_at TIMESTAMP NOT NULL,
    to_at TIMESTAMP NOT NULL,
    posted_at TIMESTAMP NOT NULL,
    posted_by VARCHAR NOT NULL,
    rose_version VARCHAR NOT NULL,
    verified BOOLEAN NOT NULL,
    reason VARCHAR,
    open_runs VARCHAR[] NOT NULL,
    book_sha256 VARCHAR NOT NULL,
    row_count BIGINT NOT NULL,
    cost_nano BIGINT NOT NULL,
    file VARCHAR NOT NULL,
    file_sha256 VARCHAR NOT NULL,
    PRIMARY KEY (close_id, correction)
);
COMMENT ON TABLE closed_posting IS
    'Every closed period and every correction to one: what the ledger''s events of the writer `closing` say, to be read by SQL. The rows themselves are Parquet files in closes/.';
COMMENT ON COLUMN closed_posting.close_id IS 'Name of the close, and of its folder in closes/.';
COMMENT ON COLUMN closed_posting.correction IS '0 for the charges as they were closed, else the number of the correction.';
COMMENT ON COLUMN closed_posting.provenance IS 'live, replay or simulated; never mix them in one figure.';
COMMENT ON COLUMN closed_posting.from_at IS 'Begin of the period that was charged, UTC.';
COMMENT ON COLUMN closed_posting.to_at IS 'End of that period (not in it), UTC.';
COMMENT ON COLUMN closed_posting.posted_at IS 'When it was closed, or the correction posted, UTC.';
COMMENT ON COLUMN closed_posting.posted_by IS 'Who did it.';
COMMENT ON COLUMN closed_posting.rose_version IS 'The version of ROSE that priced it.';
COMMENT ON COLUMN closed_posting.verified IS 'Whether the ledger verified then.';
COMMENT ON COLUMN closed_posting.reason IS 'Why it was corrected, in words; NULL for the close itself.';
COMMENT ON COLUMN closed_posting.open_runs IS 'Runs that had not ended then.';
COMMENT ON COLUMN closed_posting.book_sha256 IS 'The price book it was priced by.';
COMMENT ON COLUMN closed_posting.row_count IS 'Rows in the file.';
COMMENT ON COLUMN closed_posting.cost_nano IS
    'Amortized cost, or the signed difference, in billionths of the price book''s currency.';
COMMENT ON COLUMN closed_posting.file IS 'The Parquet file with the rows, in the folder of the close.';
COMMENT ON COLUMN closed_posting.file_sha256 IS 'SHA-256 of that file.';

CREATE TABLE closed_total (
    close_id VARCHAR NOT NULL,
    correction INTEGER NOT NULL,
    kind VARCHAR NOT NULL,
    bucket VARCHAR NOT NULL,
    ns BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    energy_mw_ns BIGINT NOT NULL,
    cost_nano BIGINT NOT NULL,
    PRIMARY KEY (close_id, correction, kind, bucket)
);
COMMENT ON TABLE closed_total IS 'Sums of a posting by kind and bucket; its costs sum exactly to the posting''s.';
COMMENT ON COLUMN closed_total.close_id IS 'Name of the close.';
COMMENT ON COLUMN closed_total.correction IS '0 for the charges as they were closed, else the number of the correction.';
COMMENT ON COLUMN closed_total.bucket IS
    'serving, rollout, train, sync, activation, headroom, idle, unaccounted, transfer or energy.';
COMMENT ON COLUMN closed_total.kind IS 'capacity, transfer or energy.';
COMMENT ON COLUMN closed_total.ns IS 'Device time, nanoseconds.';
COMMENT ON COLUMN closed_total.tokens IS 'Output tokens.';
COMMENT ON COLUMN closed_total.bytes IS 'Bytes moved.';
COMMENT ON COLUMN closed_total.energy_mw_ns IS 'Energy metered, milliwatt-nanoseconds.';
COMMENT ON COLUMN closed_total.cost_nano IS 'Cost in billionths of the price book''s currency.';

CREATE TABLE closed_writer (
    close_id VARCHAR NOT NULL,
    correction INTEGER NOT NULL,
    writer VARCHAR NOT NULL,
    last_seq BIGINT NOT NULL,
    sha256 VARCHAR NOT NULL,
    PRIMARY KEY (close_id, correction, writer)
);
COMMENT ON TABLE closed_writer IS 'How far the ledger was when a period was priced: every event up to there is in the posting.';
COMMENT ON COLUMN closed_writer.close_id IS 'Name of the close.';
COMMENT ON COLUMN closed_writer.correction IS '0 for the charges as they were closed, else the number of the correction.';
COMMENT ON COLUMN closed_writer.writer IS 'Name of the process that wrote the events.';
COMMENT ON COLUMN closed_writer.last_seq IS 'Its last event on disk then; -1 before its first.';
COMMENT ON COLUMN closed_writer.sha256 IS 'SHA-256 of the segment that ends there, which the next one names.';

CREATE TABLE budget (
    team VARCHAR NOT NULL,
    "month" DATE NOT NULL,
    budget_nano BIGINT NOT NULL,
    currency VARCHAR NOT NULL,
    set_at TIMESTAMP NOT NULL,
    set_by VARCHAR NOT NULL
);
COMMENT ON TABLE budget IS 'Budgets of teams for months. A new one is a new row: the last by set_at holds.';
COMMENT ON COLUMN budget.team IS 'Who pays: a tag of the runs.';
COMMENT ON COLUMN budget."month" IS 'First day of the UTC month.';
COMMENT ON COLUMN budget.budget_nano IS 'Billionths of the currency.';
COMMENT ON COLUMN budget.currency IS 'Of the amount: USD.';
COMMENT ON COLUMN budget.set_at IS 'When it was set, UTC.';
COMMENT ON COLUMN budget.set_by IS 'Who set it.';
