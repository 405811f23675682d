"""What a request may ask for: each parameter with its type, its default and what it means, strictly checked."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rose.errors import UserError, did_you_mean
from rose.pricing.api import window as windows
from rose.pricing.figures import AMORTIZED, FULLY_LOADED

#: What a figure is made in, as requests name it.
VIEWS: dict[str, str] = {view.replace(" ", "_"): view for view in (AMORTIZED, FULLY_LOADED)}
#: What an allocation is by, and what pricing calls it; `label:KEY` is a tag.
DIMENSIONS: dict[str, str] = {
    "team": "team",
    "run": "run",
    "task": "task",
    "model": "model",
    "version": "version",
    "pool": "pool",
    "bucket": "bucket",
    "device": "device",
    "hardware": "hardware",
    "device_class": "device-class",
}
LABEL = "tag:"
DIMENSIONS_MAX = 4
#: Most rows of an answer.
ROWS_MAX = 10_000
_CHARACTERS_MAX = 500
_FILTER = re.compile(r'(?P<name>label\[[^\]\s]+\]|[\w-]+):(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s+",]+))')


class RequestError(UserError):
    """A request that is refused. `status` is HTTP's; the message names the parameter and its value."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def dimension(name: str) -> str:
    """What pricing calls a dimension. Raises ValueError for one that there is none of."""
    if match := re.fullmatch(r"label:(.+)|label\[(.+)\]|tag:(.+)", name):
        return LABEL + str(next(filter(None, match.groups())))
    if name == "host":
        raise ValueError(
            "the ledger knows devices and not their hosts: give device or hardware, or label:host where a price book "
            "tags devices with their host"
        )
    if name not in DIMENSIONS:
        raise ValueError(f"there is no {name!r}{did_you_mean(name, {*DIMENSIONS, 'label:KEY'})}")
    return DIMENSIONS[name]


def _dimensions(text: str) -> str:
    names = [dimension(name) for name in text.split(",")]
    if len(names) > DIMENSIONS_MAX or len(set(names)) < len(names):
        raise ValueError(f"give one to {DIMENSIONS_MAX} dimensions, each once, with commas between")
    return text


def _view(text: str) -> str:
    name = text.replace("-", "_").replace(" ", "_")
    if name not in VIEWS:
        raise ValueError(f"give one of {', '.join(VIEWS)}")
    return name


def _filter(text: str) -> str:
    terms(text)
    return text


def terms(text: str) -> dict[str, str]:
    """The value that charges must have in each dimension of a filter. Raises ValueError for text that is no filter."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _FILTER.match(text, at)
        if match is None:
            raise ValueError(
                'write team:"research", and further ones after a +, such as run:"r1"+label[project]:"maze"'
            )
        name = dimension(match["name"])
        if name in found:
            raise ValueError(f"{match['name']} is given twice; one value each can be asked for")
        found[name] = match["plain"] if match["quoted"] is None else match["quoted"]
        # A plus that was not escaped comes as a blank.
        separator = re.compile(r"\s*\+?\s*").match(text, match.end())
        assert separator is not None
        at = separator.end()
        if at < len(text) and at == match.end():
            raise ValueError("put a + between two terms")
    return found


class LedgerQuery(BaseModel):
    """What every answer is asked for."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)

    ledger: Annotated[
        str | None, Field(max_length=_CHARACTERS_MAX, description="Only this ledger; else all that are served.")
    ] = None


class PeriodQuery(LedgerQuery):
    """What every figure is asked for: a time, and of which provenance if not of all, each apart."""

    window: Annotated[str, Field(max_length=100, description=f"The time, in whole UTC hours: {windows.FORMS}.")] = "7d"
    tz: Annotated[str, Field(max_length=64, description="Days, weeks and months are those of this IANA time zone.")] = (
        "UTC"
    )
    provenance: Annotated[
        Literal["live", "replay", "simulated"] | None,
        Field(description="Only figures of this provenance; else all there are, each apart."),
    ] = None


class AllocationQuery(PeriodQuery):
    """How a period's cost is divided."""

    aggregate: Annotated[
        str,
        Field(
            max_length=_CHARACTERS_MAX,
            description=f"One to {DIMENSIONS_MAX} of {', '.join(DIMENSIONS)} and label:KEY, with commas between.",
        ),
        AfterValidator(_dimensions),
    ] = "team"
    cost_basis: Annotated[
        str,
        Field(alias="costBasis", max_length=20, description=f"The view: {', '.join(VIEWS)}."),
        AfterValidator(_view),
    ] = "amortized"
    accumulate: Annotated[bool, Field(description="One set of the whole window, whatever the step.")] = False
    step: Annotated[
        str | None,
        Field(
            max_length=20,
            description=f"A set for each 1d, 1w, {', '.join(windows.STEPS[2:])}; else one of the whole window.",
        ),
        AfterValidator(lambda text: None if text is None else windows.step(text)),
    ] = None
    filter: Annotated[
        str,
        Field(
            max_length=_CHARACTERS_MAX,
            description='Only charges with these values, such as team:"research"+label[project]:"maze".',
        ),
        AfterValidator(_filter),
    ] = ""

    @property
    def dimensions(self) -> tuple[str, ...]:
        """As pricing calls them, in the order in which they were given."""
        return tuple(map(dimension, self.aggregate.split(",")))

    @property
    def names(self) -> tuple[str, ...]:
        """As the request calls them."""
        return tuple(self.aggregate.split(","))

    @property
    def only(self) -> dict[str, str]:
        return terms(self.filter)

    @property
    def by_step(self) -> str | None:
        return None if self.accumulate else self.step
