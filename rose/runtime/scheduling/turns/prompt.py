"""A turn's prompt, as its client wrote it: an engine gets it as it is, and nothing here reads thousands of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import orjson

from rose.runtime.scheduling.messages import GenerateRequest

_NULL = msgspec.Raw(b"null")
_BLANKS, _DIGITS = b" \n\r\t", b"0123456789"
_ZEROS = bytes.maketrans(_DIGITS, b"0" * len(_DIGITS))
#: No token id has so many digits.
_DIGITS_MAX = 10


class _Fields(msgspec.Struct):
    """Those of GenerateRequest, as JSON."""

    input_ids: msgspec.Raw
    sampling_params: msgspec.Raw = _NULL
    rose: msgspec.Raw = _NULL
    stream: msgspec.Raw = _NULL


_FIELDS = msgspec.json.Decoder(_Fields)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A JSON array, without blanks, of `count` token ids."""

    text: bytes
    count: int

    @classmethod
    def of(cls, input_ids: Sequence[int]) -> Prompt:
        return cls(orjson.dumps(input_ids), len(input_ids))

    def with_ids(self, made: bytes) -> msgspec.Raw:
        """The JSON array of its ids and these, which are items of such an array."""
        return msgspec.Raw(b"%b,%b]" % (self.text[:-1], made) if made else self.text)


def read(body: bytes) -> tuple[GenerateRequest, Prompt]:
    """A request with its prompt; its `input_ids` are then not those that were given. Raises ValidationError."""
    try:
        fields = _FIELDS.decode(body)
        prompt = _prompt(bytes(fields.input_ids))
    except (msgspec.DecodeError, RecursionError):
        prompt = None
    if prompt is None:
        # To say what is wrong, and where, each number is looked at.
        request = GenerateRequest.model_validate_json(body)
        return request, Prompt.of(request.input_ids)
    others = (fields.sampling_params, fields.rose, fields.stream)
    text = b'{"input_ids":[0],"sampling_params":%b,"rose":%b,"stream":%b}' % others
    return GenerateRequest.model_validate_json(text), prompt


def _prompt(given: bytes) -> Prompt | None:
    """None for JSON that is no array of token ids, as far as its signs tell."""
    text = given.translate(None, _BLANKS)
    count = text.count(b",") + 1
    if text.translate(None, _DIGITS) != b"[%b]" % (b"," * (count - 1)) or text == b"[]":
        return None
    return None if b"0" * (_DIGITS_MAX + 1) in text.translate(_ZEROS) else Prompt(text, count)
