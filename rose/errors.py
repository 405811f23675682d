"""The errors that users see without a traceback."""

import difflib
import traceback
from collections.abc import Collection
from typing import ClassVar

_NAMES_MAX = 12

#: Extras of rose-serving by part. The base install is the client and SGLang's plugin.
EXTRAS = {
    "dashboard": "dashboard",
    "rose.accept": "gpu",
    "rose.doctor": "runtime",
    "rose.ledger": "ledger",
    "rose.pricing": "pricing",
    "rose.runtime": "runtime",
}


class UserError(Exception):
    """An error whose message names the fault and its value, and says what to do."""

    exit_code: ClassVar[int] = 2  # 2: wrong input; 1: a failure.


def did_you_mean(value: str, names: Collection[str]) -> str:
    """Return the end of a message: it suggests the name that is nearest to `value`, or else lists the names."""
    if not names:
        return ""
    if near := difflib.get_close_matches(value, names, n=1):
        return f"; did you mean {near[0]!r}?"
    ellipsis = " ..." if len(names) > _NAMES_MAX else ""
    return f"; there is {', '.join(sorted(names)[:_NAMES_MAX])}{ellipsis}"


class NotInstalledError(UserError):
    """A package of a pip extra is not installed. The message names the package and the extra."""


def not_installed(error: ModuleNotFoundError) -> NotInstalledError | None:
    """Return an error that names the pip extra to install. The first module in the traceback that belongs to a part
    in `EXTRAS` decides the extra. Return None if there is no such module."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    extras = (extra for module in modules for part, extra in EXTRAS.items() if f"{module}.".startswith(f"{part}."))
    if (extra := next(extras, None)) is None:
        return None
    return NotInstalledError(f'{error.name} is not installed: pip install "rose-serving[{extra}]"')
