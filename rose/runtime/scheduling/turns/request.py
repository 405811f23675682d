"""What a client asks of a turn. Where something is wrong with it pydantic says what; else it would only cost time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from rose.event_fields import AMOUNT_MAX
from rose.runtime.scheduling.messages import ID_LENGTH_MAX, GenerateRequest, SamplingParams

_BLANKS, _DIGITS = b" \n\r\t", b"0123456789"
_ZEROS = bytes.maketrans(_DIGITS, b"0" * len(_DIGITS))
#: No token id has so many digits.
_DIGITS_MAX = 10
_Number = Annotated[int, msgspec.Meta(ge=0, le=AMOUNT_MAX)]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LENGTH_MAX)]
_Name = Annotated[str, msgspec.Meta(max_length=ID_LENGTH_MAX)]


class Prompt(msgspec.Struct, frozen=True):
    """A JSON array, without blanks, of `count` token ids."""

    text: bytes
    count: Annotated[int, msgspec.Meta(ge=0, le=AMOUNT_MAX)]

    @classmethod
    def of(cls, input_ids: Sequence[int]) -> Prompt:
        return cls(msgspec.json.encode(input_ids), len(input_ids))

    @classmethod
    def read(cls, given: bytes) -> Prompt | None:
        """None for JSON that is no array of token ids, as far as its signs tell."""
        return _without_blanks(given) or _without_blanks(given.translate(None, _BLANKS))

    def with_ids(self, made: bytes) -> msgspec.Raw:
        """The JSON array of its ids and these, which are items of such an array."""
        return msgspec.Raw(b"%b,%b]" % (self.text[:-1], made) if made else self.text)


def _without_blanks(text: bytes) -> Prompt | None:
    signs = text.translate(None, _DIGITS)
    count = len(signs) - 1
    if signs != b"[%b]" % (b"," * (count - 1)) or text == b"[]":
        return None
    return None if b"0" * (_DIGITS_MAX + 1) in text.translate(_ZEROS) else Prompt(text, count)


class Labels(msgspec.Struct, frozen=True):
    """TurnLabels, whose fields these are."""

    trajectory_id: _Name | None = None
    version_min: _Number | None = None
    group_id: _Id | None = None
    step: _Number | None = None
    turn: _Number | None = None
    key: _Id | None = None


class TurnRequest(msgspec.Struct, frozen=True):
    """A GenerateRequest. `sampling` is what engines are to be sent: what was given, and `max_new_tokens`."""

    prompt: Prompt
    sampling: dict[str, Any]
    labels: Labels = Labels()
    stream: bool = False


class _Fields(msgspec.Struct):
    """Those of GenerateRequest, as JSON."""

    input_ids: msgspec.Raw
    sampling_params: dict[str, Any] | None = None
    rose: Labels | None = None
    stream: bool | None = None


_FIELDS = msgspec.json.Decoder(_Fields)
_NO_LABELS = Labels()
_TOKENS_MAX: int = SamplingParams.model_fields["max_new_tokens"].default


def read(body: bytes) -> TurnRequest:
    """Raises ValidationError."""
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return _validated(body)
    prompt, sampling = Prompt.read(bytes(fields.input_ids)), fields.sampling_params or {}
    if prompt is None or not _is_plain(sampling):
        return _validated(body)
    sampling.setdefault("max_new_tokens", _TOKENS_MAX)
    return TurnRequest(prompt, sampling, fields.rose or _NO_LABELS, fields.stream or False)


def _is_plain(sampling: dict[str, Any]) -> bool:
    """Whether the parameters that SamplingParams names are surely what it wants."""
    counts = sampling.get("max_new_tokens", 0), sampling.get("min_new_tokens", 0), sampling.get("n", 1)
    return all(type(count) is int and 0 <= count <= AMOUNT_MAX for count in counts) and counts[2] == 1


def _validated(body: bytes) -> TurnRequest:
    """Each of its values is, to say where and what is wrong."""
    request = GenerateRequest.model_validate_json(body)
    labels = _NO_LABELS if request.rose is None else Labels(**request.rose.model_dump())
    return TurnRequest(Prompt.of(request.input_ids), request.sampling, labels, request.stream or False)
