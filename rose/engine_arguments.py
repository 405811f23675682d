"""What a fleet file's `extra_args` for SGLang ask for, as far as it matters before an engine is started."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

#: SGLang's names of how many ranks an engine has; it takes their beginnings too.
_RANKS = {
    "--tp-size",
    "--tensor-parallel-size",
    "--pp-size",
    "--pipeline-parallel-size",
    "--dp-size",
    "--data-parallel-size",
}


def more_ranks(arguments: Sequence[str]) -> str | None:
    """The first of the arguments that gives an engine more than one rank, with its value; None if none does."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for name, value in itertools.pairwise(words):
        asked = len(name) > 3 and any(known.startswith(name) for known in _RANKS)
        if asked and value.isdecimal() and int(value) > 1:
            return f"{name} {value}"
    return None
