-- Facts that the mapping to FOCUS joins to each charge: the invoiced name of its part, and the price of its item.
CREATE OR REPLACE TEMP TABLE part (
    part INTEGER, correction BOOLEAN, invoice_id VARCHAR, billing_from TIMESTAMP, billing_to TIMESTAMP,
    currency VARCHAR, book_name VARCHAR, book_version VARCHAR, book_sha256 VARCHAR
);
CREATE OR REPLACE TEMP TABLE price (
    part INTEGER, item VARCHAR, stretch BIGINT, price_pico HUGEINT, price_id VARCHAR, agreed VARCHAR
);
