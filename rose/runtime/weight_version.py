"""The name of an engine's weights, which SGLang reports with every token."""


def weights_name(run_id: str, version: int) -> str:
    """Return `RUN/7` for version 7 of a run, `7` without a run. Names of two runs always differ."""
    return f"{run_id}/{version}" if run_id else str(version)


def parse_name(name: str) -> tuple[str, int] | None:
    """Return (run, version) of such a name; None for other text, as of an engine without a published version."""
    run_id, _, number = name.rpartition("/")
    return (run_id, int(number)) if number.isascii() and number.isdecimal() else None
