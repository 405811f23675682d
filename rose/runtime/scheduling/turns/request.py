"""Reads a turn's request. Its token ids stay JSON text, because there may be 100,000."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from rose.event_fields import AMOUNT_MAX
from rose.runtime.scheduling.messages import ID_LENGTH_MAX
from rose.runtime.scheduling.refusals import RequestError

_BLANKS, _DIGITS = b" \n\r\t", b"0123456789"
_ZEROS = bytes.maketrans(_DIGITS, b"0" * len(_DIGITS))
_DIGITS_MAX = 10
_Token = Annotated[int, msgspec.Meta(ge=0, le=10**_DIGITS_MAX - 1)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=AMOUNT_MAX)]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LENGTH_MAX)]
_Name = Annotated[str, msgspec.Meta(max_length=ID_LENGTH_MAX)]

TOKENS_DEFAULT = 128


class Prompt(msgspec.Struct, frozen=True):
    """A prompt. `text` is a JSON array of `count` token ids, without blanks."""

    text: bytes
    count: _Number

    @classmethod
    def of(cls, input_ids: Sequence[int]) -> Prompt:
        return cls(msgspec.json.encode(input_ids), len(input_ids))

    @classmethod
    def read(cls, text: bytes) -> Prompt | None:
        return _without_blanks(text) or _without_blanks(text.translate(None, _BLANKS))

    def with_ids(self, more_ids: bytes) -> msgspec.Raw:
        return msgspec.Raw(b"%b,%b]" % (self.text[:-1], more_ids) if more_ids else self.text)


def _without_blanks(text: bytes) -> Prompt | None:
    signs = text.translate(None, _DIGITS)
    count = len(signs) - 1
    if signs != b"[%b]" % (b"," * (count - 1)) or text == b"[]":
        return None
    return None if b"0" * (_DIGITS_MAX + 1) in text.translate(_ZEROS) else Prompt(text, count)


class Labels(msgspec.Struct, frozen=True):
    """ROSE's own fields of a turn. Unknown fields are ignored."""

    trajectory_id: _Name | _Number | None = None
    version_min: _Number | None = None
    #: The turn's place in the ledger. Default of `turn`: the trajectory's number of earlier turns.
    group_id: _Id | _Number | None = None
    step: _Number | None = None
    turn: _Number | None = None
    key: _Id | _Number | None = None  # Requests with one key are one turn.

    def __post_init__(self) -> None:
        for name in ("trajectory_id", "group_id", "key"):
            if isinstance(value := getattr(self, name), int):
                msgspec.structs.force_setattr(self, name, str(value))


class TurnRequest(msgspec.Struct, frozen=True):
    """A turn's request. `sampling` always has `max_new_tokens`."""

    prompt: Prompt
    sampling: dict[str, Any]
    labels: Labels = Labels()
    stream: bool = False
    fields: dict[str, Any] = {}


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    input_ids: msgspec.Raw
    sampling_params: dict[str, Any] | None = None
    rose: Labels | None = None
    stream: bool | None = None


_FIELDS = msgspec.json.Decoder(_Fields)
_IDS = msgspec.json.Decoder(Annotated[list[_Token], msgspec.Meta(min_length=1)])


def read(body: bytes) -> TurnRequest | None:
    """Return the turn in a body, or None if the body has a text, several turns or other fields. Raises RequestError."""
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if any(other in str(error) for other in ("unknown field", "missing required field")):
            return None
        raise RequestError(_explained(error)) from None
    prompt, sampling = Prompt.read(bytes(fields.input_ids)), fields.sampling_params or {}
    if bytes(fields.input_ids).translate(None, _BLANKS).startswith(b"[[") or sampling.get("n", 1) != 1:
        return None
    if prompt is None:
        try:
            prompt = Prompt.of(_IDS.decode(fields.input_ids))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RequestError(_explained(error, "input_ids")) from None
    for name in ("max_new_tokens", "min_new_tokens"):
        if type(count := sampling.get(name, 0)) is not int or not 0 <= count <= AMOUNT_MAX:
            raise RequestError(f"sampling_params.{name} is {repr(count)[:60]}: give an integer from 0, or leave it out")
    sampling.setdefault("max_new_tokens", TOKENS_DEFAULT)
    return TurnRequest(prompt, sampling, fields.rose or Labels(), fields.stream or False)


def _explained(error: Exception, field: str = "") -> str:
    reason, _, place = str(error).partition(" - at `$")
    place = field + place.rstrip("`").replace("[", ".").replace("]", "")
    return f"{place.removeprefix('.') or 'the body'}: {reason}"
