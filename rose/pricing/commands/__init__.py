"""The commands about money: `rose cost`, `report`, `books`, `price`, `export`, `api` and others."""
