-- Budgets that hold: of each team and month the one that was set last. Read from `books.duckdb`.
SELECT team, "month", budget_nano, currency, set_at, set_by
FROM budget
QUALIFY row_number() OVER (PARTITION BY team, "month" ORDER BY set_at DESC, rowid DESC) = 1
ORDER BY "month", team;
