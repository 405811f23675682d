"""Hostile statements: those of `benchmarks/hostile.sql`, and those too long or too odd for its lines."""

from rose.accept.report import ROOT

MADE: dict[str, str] = {
    "A line end, and a second statement.": "SELECT 1 --\n; DROP VIEW lease",
    "A byte that ends texts in C.": "SELECT 1\0; DROP VIEW lease",
    "A byte that ends texts in C, in a path.": "SELECT * FROM read_text('{outside}/secret.csv\0.parquet')",
    "A byte that ends texts in C, in a name.": 'SELECT * FROM "lease\0{outside}/secret.csv"',
    "Half a character.": "SELECT '\ud800'",
    "A line end that only some know.": "SELECT 1 --\r; DROP VIEW lease",
    "Nothing but blanks.": " " * 50_000,
    "More than is read.": "SELECT " + "1" * 100_001,
    "A comment longer than is read.": "SELECT 1 /*" + "x" * 100_000 + "*/",
    "Brackets in brackets.": "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "Brackets that are not closed.": "SELECT " + "(" * 90_000,
    "Subselects in subselects.": "SELECT " + "(SELECT " * 9_000 + "1" + ")" * 9_000,
    "Tables in tables.": "FROM " + "(FROM " * 9_000 + "lease" + ")" * 9_000,
    "Minus of minus.": "SELECT " + "- " * 45_000 + "1",
    "Not of not.": "SELECT " + "NOT " * 20_000 + "true",
    "Bits of bits.": "SELECT " + "~" * 90_000 + "1",
    "A long sum.": "SELECT 1" + "+1" * 45_000,
    "A long text of parts.": "SELECT ''" + "||''" * 20_000,
    "Lists in lists.": "SELECT " + "[" * 20_000 + "1" + "]" * 20_000,
    "Structs in structs.": "SELECT " + "{'a':" * 15_000 + "1" + "}" * 15_000,
    "Functions in functions.": "SELECT " + "abs(" * 15_000 + "1" + ")" * 15_000,
    "Casts of casts.": "SELECT 1" + "::INT" * 19_000,
    "Types in types.": "SELECT NULL::INT" + "[]" * 45_000,
    "Structs as types.": "SELECT NULL::" + "STRUCT(a " * 9_000 + "INT" + ")" * 9_000,
    "CASE in CASE.": "SELECT " + "CASE WHEN true THEN " * 4_000 + "1" + " END" * 4_000,
    "Lambdas in lambdas.": "SELECT " + "list_transform([1], lambda x: " * 3_000 + "1" + ")" * 3_000,
    "Unions of unions.": "FROM event" + " UNION ALL FROM event" * 4_500,
    "Unions in brackets.": "(" * 4_000 + "SELECT 1" + ") UNION SELECT 2" * 4_000,
    "Joins of joins.": "SELECT count(*) FROM range(10) " + ", range(10)" * 8_000,
    "Joins with conditions.": "SELECT count(*) FROM range(9) t0"
    + "".join(f" JOIN range(9) t{n} ON t{n}.range <> t{n - 1}.range" for n in range(1, 1_500)),
    "WITH in WITH.": "WITH a AS (" * 5_000 + "SELECT 1" + ") FROM a" * 5_000,
    "Names that double.": "SELECT 1 AS a0" + "".join(f", a{n - 1} + a{n - 1} AS a{n}" for n in range(1, 60)),
    "Texts that double.": "SELECT 'x' AS a0" + "".join(f", a{n - 1} || a{n - 1} AS a{n}" for n in range(1, 60)),
    "Columns that double.": "WITH c0 AS (SELECT 1 AS a)"
    + "".join(f", c{n} AS (SELECT * FROM c{n - 1}, c{n - 1} AS x)" for n in range(1, 30))
    + " FROM c29",
    "Rows that double.": "WITH c0 AS (SELECT 1 AS a)"
    + "".join(f", c{n} AS (FROM c{n - 1} UNION ALL FROM c{n - 1})" for n in range(1, 64))
    + " SELECT count(*) FROM c63 WHERE random() > 2",
    "Columns of columns.": "SELECT " + ", ".join(["COLUMNS(*)"] * 5_000) + " FROM event",
    "A pattern that grows.": "SELECT regexp_matches(repeat('a', 100000000), '((a{0,100}){0,100}){0,100}b')",
    "A number of many digits.": "SELECT " + "9" * 90_000 + "::INT",
    "A name of many letters, as a table.": 'FROM "' + "x" * 90_000 + '"',
    "Stars in a path.": "FROM '" + "*/" * 40_000 + "'",
    "Ways up in a path.": "FROM read_text('{root}/live/" + "../" * 20_000 + "etc/passwd')",
    "Many statements.": "SELECT 1;" * 10_000,
    "Many views, in one breath.": "SELECT count(*) FROM " + ", ".join(["event"] * 1_500) + " WHERE random() > 2",
    "Sets of groups of sets.": "SELECT count(*) FROM range(1000) t(i) GROUP BY CUBE ("
    + ", ".join(f"i % {n}" for n in range(2, 20))
    + ")",
}


def statements() -> dict[str, str]:
    """Return every hostile statement: those of `benchmarks/hostile.sql` under their own text, those of MADE by name."""
    lines = (ROOT / "benchmarks" / "hostile.sql").read_text(encoding="utf-8").split("\n")
    return {line: line for line in lines if line and not line.startswith("-- ")} | MADE
