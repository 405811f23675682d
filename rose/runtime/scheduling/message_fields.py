"""Field types of messages: every number has a range, every text a length, every list and table a size.

What is accepted can be added, shown, exported as a metric and recorded in the ledger.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Field

from rose.event_fields import AMOUNT_MAX, INSTANT_NS_MAX

ID_LENGTH_MAX = 256
REASON_LENGTH_MAX = 1024
_ADDRESS_LENGTH_MAX = 4096
_NAMES_MAX = 1024
_TAGS_MAX = 64
#: A leap year.
_SECONDS_MAX = 366 * 86400.0

T = TypeVar("T")


def _cut(value: object) -> object:
    return value[:REASON_LENGTH_MAX] if isinstance(value, str) else value


#: A number that an event of the ledger can hold.
Count = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]
Nanoseconds = Count
#: UTC or monotonic.
InstantNs = Annotated[int, Field(ge=0, le=INSTANT_NS_MAX)]
Fence = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
#: A process may run for years.
Seconds = Annotated[float, Field(ge=0, le=100 * _SECONDS_MAX, allow_inf_nan=False)]
Id = Annotated[str, Field(min_length=1, max_length=ID_LENGTH_MAX)]
Name = Annotated[str, Field(max_length=ID_LENGTH_MAX)]
Reason = Annotated[str, Field(max_length=REASON_LENGTH_MAX)]
#: What a host reports of a failure. A long one is cut: its host must stay heard.
Failure = Annotated[str, BeforeValidator(_cut), Field(max_length=REASON_LENGTH_MAX)]
#: A URL, or the path of a model.
Address = Annotated[str, Field(max_length=_ADDRESS_LENGTH_MAX)]
Token = Annotated[str, Field(max_length=_ADDRESS_LENGTH_MAX)]
Tags = Annotated[dict[Name, Name], Field(max_length=_TAGS_MAX)]
Few = Annotated[list[T], Field(max_length=_NAMES_MAX)]
ByName = Annotated[dict[Name, T], Field(max_length=_NAMES_MAX)]
