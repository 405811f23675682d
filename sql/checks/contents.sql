-- All that the attached database `ledger` defines, in this order: kind, name, and the text of a view or comment.
SELECT 'view' AS kind, if(schema_name = 'main', view_name, schema_name || '.' || view_name) AS name, sql AS definition
FROM duckdb_views()
WHERE database_name = 'ledger' AND NOT internal
UNION ALL
SELECT 'table', schema_name || '.' || table_name, NULL
FROM duckdb_tables()
WHERE database_name = 'ledger' AND NOT internal
UNION ALL
SELECT 'sequence', schema_name || '.' || sequence_name, NULL
FROM duckdb_sequences()
WHERE database_name = 'ledger'
UNION ALL
SELECT 'type', schema_name || '.' || type_name, NULL
FROM duckdb_types()
WHERE database_name = 'ledger' AND NOT internal
UNION ALL
SELECT 'schema', schema_name, NULL
FROM duckdb_schemas()
WHERE database_name = 'ledger' AND NOT internal AND schema_name NOT IN ('main', 'internal')
UNION ALL
SELECT 'macro', schema_name || '.' || function_name, NULL
FROM duckdb_functions()
WHERE database_name = 'ledger' AND NOT internal
UNION ALL
SELECT 'comment', if(schema_name = 'main', view_name, schema_name || '.' || view_name), comment
FROM duckdb_views()
WHERE database_name = 'ledger' AND NOT internal
UNION ALL
SELECT 'comment', if(schema_name = 'main', '', schema_name || '.') || table_name || '.' || column_name, comment
FROM duckdb_columns()
WHERE database_name = 'ledger' AND NOT internal;
