"""What a client asks of a turn. Where something is wrong with it pydantic says what; else it would only cost time."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from rose.event_fields import AMOUNT_MAX
from rose.runtime.scheduling.messages import ID_LENGTH_MAX, GenerateRequest, SamplingParams
from rose.runtime.scheduling.turns.turns import Prompt

_Number = Annotated[int, msgspec.Meta(ge=0, le=AMOUNT_MAX)]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LENGTH_MAX)]
_Name = Annotated[str, msgspec.Meta(max_length=ID_LENGTH_MAX)]


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
