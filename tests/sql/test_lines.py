"""Lines of SQL are as long as those of Python."""

from pathlib import Path

import sql

ROOT = Path(sql.__file__).parent
COLUMNS_MAX = 120


def test_no_line_is_too_long():
    files = list(ROOT.rglob("*.sql"))
    assert len(files) > 100
    too_long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(files)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]
    assert not too_long
