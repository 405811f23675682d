"""The name of the weights in an engine, which SGLang reports with every token."""


def weights_name(run_id: str, version: int) -> str:
    """Return the name `RUN/7` for version 7 of a run, or `7` without a run. No two runs share a name."""
    return f"{run_id}/{version}" if run_id else str(version)


def parse_name(name: str) -> tuple[str, int] | None:
    """Return the (run, version) of a name, or None for an engine without a published version."""
    run_id, _, number = name.rpartition("/")
    return (run_id, int(number)) if number.isascii() and number.isdecimal() else None
