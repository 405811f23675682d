-- Statements that a reader of the ledger must not get away with: each is refused, or stopped at its limit, and leaves
-- every byte of the ledger as it was. One to a paragraph, below a line that says what it tries. {root} stands for the
-- ledger's folder and {outside} for the folder around it, which holds secret.csv.

-- Two statements in one text.
SELECT 1; DROP VIEW lease

-- Out of the subselect that limits the rows.
SELECT 1) UNION ALL (SELECT 2

-- Out of the subselect, into a file.
SELECT 1) TO '{outside}/out.csv' --

-- A row of its own.
INSERT INTO lease VALUES (1)

-- Rows away.
DELETE FROM lease

-- A value changed.
UPDATE lease SET step = 1

-- A view away.
DROP VIEW lease

-- A table of its own.
CREATE TABLE t AS SELECT 1

-- Another view in the place of the segments.
CREATE OR REPLACE TEMP VIEW stored_event AS SELECT 1

-- A DELETE inside a WITH, which counts as a SELECT.
WITH gone AS (DELETE FROM lease RETURNING *) SELECT * FROM gone

-- An INSERT as a table.
SELECT * FROM (INSERT INTO lease VALUES (1) RETURNING *)

-- A copy outside.
COPY lease TO '{outside}/out.csv'

-- A segment of its own.
COPY (SELECT 1) TO '{root}/live/w/000000/x.parquet' (FORMAT parquet)

-- Everything outside.
EXPORT DATABASE '{outside}/dump'

-- Another database.
ATTACH '{outside}/other.duckdb'

-- An extension that reaches the network.
INSTALL httpfs

-- The lock on the settings.
SET lock_configuration = false

-- Access to files.
SET enable_external_access = true

-- The time limit.
RESET max_execution_time

-- A profile written to a file.
PRAGMA profiling_output = '{outside}/profile'

-- The plan of a query, which runs it.
EXPLAIN ANALYZE SELECT 1

-- A write of the catalog.
CHECKPOINT

-- A write of the catalog, as a table function.
SELECT * FROM checkpoint()

-- A prepared statement.
PREPARE x AS SELECT 1

-- A foreign file by its function.
SELECT * FROM read_csv('{outside}/secret.csv')

-- A foreign file by its name.
SELECT * FROM '{outside}/secret.csv'

-- A foreign file by a name that a WITH elsewhere has.
SELECT * FROM '{outside}/secret.csv', (WITH "{outside}/secret.csv" AS (SELECT 1) SELECT 2)

-- A foreign file by a name that a later WITH has.
WITH a AS (FROM '{outside}/secret.csv'), "{outside}/secret.csv" AS (SELECT 1) FROM a

-- A foreign file as text.
SELECT content FROM read_text('{outside}/secret.csv')

-- A foreign file through the ledger's folder.
SELECT content FROM read_blob('{root}/../secret.csv')

-- A foreign file through a folder that may be read.
SELECT content FROM read_text('{root}/live/../../secret.csv')

-- A foreign file deep inside a query.
SELECT (SELECT max(content) FROM read_text('{outside}/secret.csv')) FROM lease WHERE step IN (SELECT 1)

-- A foreign file by the system's own name of the function.
SELECT * FROM system.main.read_text('{outside}/secret.csv')

-- The form of a foreign file.
SELECT * FROM sniff_csv('{outside}/secret.csv')

-- Names of foreign files.
SELECT * FROM glob('{outside}/*')

-- The ledger's own files, but not by its views: logs and locks lie beside the segments.
SELECT * FROM glob('{root}/**')

-- A segment past the views, with its host's path.
SELECT filename FROM read_parquet('{root}/live/*/*/*.parquet', filename = true)

-- What a segment says of itself.
SELECT * FROM parquet_metadata('{root}/live/*/*/*.parquet')

-- A log, which may hold prompts.
SELECT * FROM read_text('{root}/logs/**')

-- Another host's file.
SELECT * FROM read_csv('https://example.invalid/x.csv')

-- A statement in a string.
SELECT * FROM query('COPY (SELECT 1) TO ''{outside}/out.csv''')

-- A foreign file as the name of a table in a string.
SELECT * FROM query_table('{outside}/secret.csv')

-- A foreign file through a macro that takes the name of a table.
SELECT * FROM histogram('{outside}/secret.csv', password)

-- A statement in JSON.
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))

-- Settings.
SELECT * FROM duckdb_settings()

-- One setting.
SELECT current_setting('temp_directory')

-- Secrets that DuckDB keeps.
SELECT * FROM duckdb_secrets()

-- Where the database lies.
SELECT * FROM pragma_database_list

-- What lies in the catalog beside the views.
SELECT * FROM information_schema.tables

-- The version and platform of the host.
SELECT * FROM pragma_platform()

-- The environment of the process.
SELECT getenv('HOME')

-- Other people's queries.
SELECT * FROM duckdb_logs()

-- A line in the log.
SELECT write_log('x')

-- A worker kept by waiting.
SELECT sleep_ms(3600000)

-- A table of the program that asks.
SELECT * FROM mine

-- A table of the program that asks, by its address.
SELECT * FROM arrow_scan(1, 2, 3)

-- Everything at once, over and over: a join without a condition.
SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3

-- The same of the ledger's own view.
SELECT count(*) FROM event a, event b, event c, range(1000000000000) d WHERE a.seq + b.seq + c.seq + d.range % 7 < 0

-- A series without a practical end.
SELECT count(*) FROM generate_series(1, 1000000000000)

-- Recursion without an end.
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t

-- Recursion that doubles.
WITH RECURSIVE t(n) AS (SELECT repeat('x', 100000) UNION ALL SELECT n || n FROM t) SELECT count(*) FROM t

-- One call that compares for minutes, heeding no interrupt.
SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))

-- One number with millions of digits.
SELECT repeat('9', 10000000)::BIGNUM

-- One lambda over a long list.
SELECT list_reduce(range(100000000), lambda a, b: (a + b) % 7)

-- One text of gigabytes.
SELECT length(repeat('x', 4000000000))

-- One text of more than a text can hold.
SELECT repeat('x', 10000000000)

-- One text by its padding.
SELECT lpad('x', 2000000000, 'y')

-- One text by its format.
SELECT printf('%1000000000d', 1)

-- One text of every row.
SELECT string_agg(repeat('x', 1000000), '') FROM range(100000)

-- One list of gigabytes.
SELECT len(range(1000000000))

-- One list that is small to ask for and large to make.
SELECT regexp_extract_all(repeat('a', 100000000), 'a')

-- One list of the parts of a text.
SELECT string_split(repeat('a,', 100000000), ',')

-- One list by its length.
SELECT list_resize([1], 500000000)

-- One list of two.
SELECT list_zip(range(50000000), range(50000000))

-- One map.
SELECT map(range(50000000), range(50000000))

-- One matrix, for a distance.
SELECT damerau_levenshtein(repeat('a', 30000), repeat('b', 30000))

-- One date in a hundred million forms.
SELECT strftime(TIMESTAMP '2020-01-01', repeat('%c', 100000000))

-- A sort that does not fit.
SELECT * FROM range(100000000000) t(i) ORDER BY hash(i)

-- A set that does not fit.
SELECT count(DISTINCT i) FROM range(1000000000) t(i)

-- A result that does not fit where it goes.
SELECT repeat('x', 1000000) FROM range(1000)
