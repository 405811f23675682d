-- Rows of `invoice_row` that are, cell by cell, a row before them. They are counted: the vendor asks to be paid twice.
CREATE OR REPLACE TABLE again AS
SELECT r.row, min(r.row) OVER (PARTITION BY fingerprint, billed, effective, begins, ends, resource) AS first
FROM invoice_row AS r
SEMI JOIN (SELECT fingerprint FROM invoice_row GROUP BY fingerprint HAVING count(*) > 1) USING (fingerprint)
QUALIFY r.row > first;
