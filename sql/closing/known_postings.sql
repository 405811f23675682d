-- What the books say of every posting: a close, or a correction to one. Read from `books.duckdb`.
SELECT
    p.close_id, p.correction, p.posted_at, p.verified, p.book_sha256, p.row_count, p.cost_nano, p.file, p.file_sha256,
    (SELECT coalesce(sum(t.cost_nano), 0) FROM closed_total AS t
     WHERE t.close_id = p.close_id AND t.correction = p.correction)::BIGINT AS total_nano
FROM closed_posting AS p
ORDER BY p.close_id, p.correction;
