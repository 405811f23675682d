"""A turn's prompt, as its client wrote it: an engine gets it as it is, and nothing here reads thousands of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from rose.event_fields import AMOUNT_MAX

_BLANKS, _DIGITS = b" \n\r\t", b"0123456789"
_ZEROS = bytes.maketrans(_DIGITS, b"0" * len(_DIGITS))
#: No token id has so many digits.
_DIGITS_MAX = 10


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
