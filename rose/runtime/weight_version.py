"""What an engine calls the weights that it computes with: SGLang reports it with every token made with them."""

from __future__ import annotations


def weights_name(run_id: str, version: int) -> str:
    """`RUN/7` for version 7 of a run, `7` for one of no run: what another run published never has the same name."""
    return f"{run_id}/{version}" if run_id else str(version)


def parse_name(name: str) -> tuple[str, int] | None:
    """(run, version) of such a name; None for another text, as of an engine that nothing was published to."""
    run_id, _, number = name.rpartition("/")
    return (run_id, int(number)) if number.isascii() and number.isdecimal() else None
