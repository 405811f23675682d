"""The dashboard. Importing this package does not import Streamlit."""

from importlib import resources
from pathlib import Path

from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError


def ledger_to_show(ledger: Path | None) -> Path:
    """Return `ledger` if it is given, else ./ledger if that exists, else the sample ledger. Raises LedgerError."""
    if ledger is not None:
        return layout.check(ledger)
    for folder in (Path.cwd() / "ledger", Path(str(resources.files("sample_traces"))) / "ledger"):
        if (folder / layout.MARKER).is_file():
            return layout.check(folder)
    raise LedgerError(
        f"there is no ledger in {Path.cwd()}, and no sample ledger is installed; name a ledger with --ledger, or "
        "create one with `rose demo`"
    )
