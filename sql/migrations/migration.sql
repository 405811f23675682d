-- What was applied to this file. Made before the first numbered migration, and never changed.
CREATE TABLE IF NOT EXISTS migration (
    number INTEGER PRIMARY KEY,
    name VARCHAR NOT NULL,
    sha256 VARCHAR NOT NULL,
    applied_at TIMESTAMP NOT NULL
);
