"""Questions that were given a name, to be asked again: `<ledger>/costs/reports.json`, no part of its evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from rose.ledger import layout
from rose.ledger.layout import LedgerError
from rose.pricing.money import PricingError
from rose.pricing.spend.sums import FOLDER

FILE = "reports.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

#: What an option of `rose cost` was given; options that were left out are left out.
Options = Mapping[str, object]


def load(root: Path) -> dict[str, dict[str, object]]:
    """The options of each report, by its name. Raises LedgerError for a file that is none."""
    path = layout.check(root) / FOLDER / FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LedgerError(f"saved reports cannot be read from {path}: {error}; put it right, or remove it") from None
    if not isinstance(stored, dict) or not all(isinstance(options, dict) for options in stored.values()):
        raise LedgerError(f"{path} has no saved reports in it; put it right, or remove it")
    return dict(sorted(stored.items()))


def save(root: Path, name: str, options: Options) -> None:
    """Keep the options under a name, in place of what had it. Raises PricingError for another name; LedgerError."""
    if _NAME.fullmatch(name) is None:
        raise PricingError(f"{name!r} is no name for a report; give up to 64 letters, digits, `-`, `_` or `.`")
    _write(root, load(root) | {name: dict(options)})


def forget(root: Path, name: str) -> None:
    """Raises PricingError for a name that no report has; LedgerError."""
    stored = load(root)
    options(root, name)
    _write(root, {other: given for other, given in stored.items() if other != name})


def options(root: Path, name: str) -> dict[str, object]:
    """The options of one report. Raises PricingError for a name that no report has; LedgerError."""
    stored = load(root)
    if name not in stored:
        names = ", ".join(stored) or "none yet; `rose cost --save NAME` saves one"
        raise PricingError(f"no report is saved as {name!r}; there is {names}")
    return stored[name]


def _write(root: Path, stored: Mapping[str, Options]) -> None:
    path = root / FOLDER / FILE
    try:
        path.parent.mkdir(exist_ok=True)
        layout.write_file(path, (json.dumps(stored, indent=2, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise LedgerError(f"cannot save a report in {path}: {error.strerror}; nothing was saved") from error
