CREATE TABLE closed_cover (
    close_id VARCHAR NOT NULL,
    correction INTEGER NOT NULL,
    covered_id VARCHAR NOT NULL,
    covered_correction INTEGER NOT NULL,
    from_at TIMESTAMP NOT NULL,
    to_at TIMESTAMP NOT NULL,
    before_nano BIGINT NOT NULL,
    cost_nano BIGINT NOT NULL,
    PRIMARY KEY (close_id, correction, covered_id, from_at)
);
COMMENT ON TABLE closed_cover IS
    'Hours of a close that had been closed before, such as those of a week in a month. In these hours the covered close no longer counts: leave it out of sums.';
COMMENT ON COLUMN closed_cover.close_id IS 'Name of the close that counts.';
COMMENT ON COLUMN closed_cover.correction IS 'Always 0: closing covers, correcting does not.';
COMMENT ON COLUMN closed_cover.covered_id IS 'Name of the close that counted before.';
COMMENT ON COLUMN closed_cover.covered_correction IS 'Its last correction then; 0 for none.';
COMMENT ON COLUMN closed_cover.from_at IS 'Begin of the hours, UTC.';
COMMENT ON COLUMN closed_cover.to_at IS 'End of the hours (not in them), UTC.';
COMMENT ON COLUMN closed_cover.before_nano IS
    'What the covered close charged for them with its corrections, in billionths of the price book''s currency.';
COMMENT ON COLUMN closed_cover.cost_nano IS 'What the close that counts charges for them.';
