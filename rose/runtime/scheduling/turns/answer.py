"""Reads the answers of engines. Token ids and log probabilities stay JSON text, which is not parsed."""

from __future__ import annotations

from typing import Annotated, Self

import msgspec
from msgspec.structs import replace

from rose.event_fields import AMOUNT_MAX
from rose.runtime.scheduling.messages import ID_LENGTH_MAX
from rose.runtime.weight_version import parse_name, weights_name

_NOTHING = msgspec.Raw(b"[]")
_Index = Annotated[int, msgspec.Meta(ge=0, le=AMOUNT_MAX)]
_Text = Annotated[str, msgspec.Meta(max_length=2 * ID_LENGTH_MAX)]


class Tokens(msgspec.Struct, frozen=True):
    """Tokens. `ids` and `logprobs` are JSON arrays without brackets. Each token has a version."""

    ids: bytes = b""
    logprobs: bytes = b""
    count: _Index = 0
    versions: list[_Index] = []

    def __add__(self, more: Tokens) -> Tokens:
        if not self.count:
            return more
        return Tokens(
            b",".join(filter(None, (self.ids, more.ids))),
            b",".join(filter(None, (self.logprobs, more.logprobs))),
            self.count + more.count,
            self.versions + more.versions,
        )

    def first(self, count: int) -> Tokens:
        ids, logprobs = msgspec.json.decode(array(self.ids)), msgspec.json.decode(array(self.logprobs))
        return Tokens(
            msgspec.json.encode(ids[:count])[1:-1],
            msgspec.json.encode(logprobs[:count])[1:-1],
            len(ids[:count]),
            self.versions[:count],
        )


class _Span(msgspec.Struct, frozen=True):
    """A range of tokens with one version: `7`, `RUN/7` or, before the first update, "default"."""

    version: _Text | _Index
    start: _Index
    end: _Index


class _Finish(msgspec.Struct):
    type: _Text = ""


class _Body(msgspec.Struct):
    meta_info: dict[str, msgspec.Raw]
    output_ids: msgspec.Raw = _NOTHING


_BODY = msgspec.json.Decoder(_Body)
_SPANS = msgspec.json.Decoder(list[_Span] | None)
_FINISH = msgspec.json.Decoder(_Finish | None)
_COUNT = msgspec.json.Decoder(_Index)


class Answer(msgspec.Struct, frozen=True):
    meta: dict[str, msgspec.Raw]
    tokens: Tokens
    cached_tokens: _Index
    finish: _Text | None  # How the attempt ended; None: incomplete.
    spans: list[_Span]

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the answer in a response body. Raises ValueError."""
        try:
            read = _BODY.decode(body)
            meta = read.meta_info
            ids = _items(read.output_ids)
            count = ids.count(b",") + 1 if ids else 0
            spans = _SPANS.decode(meta.get("weight_versions", b"null")) or []
            finish = _FINISH.decode(meta.get("finish_reason", b"null"))
            logprobs = _items(meta.get("output_token_logprobs", _NOTHING))
            cached_tokens = _COUNT.decode(meta.get("cached_tokens", b"0"))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"not an answer of SGLang: {error}") from None
        tokens = Tokens(ids, logprobs, count, _versions(spans, count))
        return cls(meta, tokens, cached_tokens, None if finish is None else finish.type, spans)

    def of_run(self, run_id: str) -> Self:
        """Return the answer up to the first token that another run's weights made."""
        of_run = (("", ""), (run_id, "/"))  # A version without a run fits any run.
        foreign = [s.start for s in self.spans if s.end > s.start and str(s.version).rpartition("/")[:2] not in of_run]
        if not foreign:
            return self
        end = min(foreign)
        spans = [span for span in self.spans if span.end <= end]
        meta = self.meta | {"weight_versions": msgspec.Raw(msgspec.json.encode(spans))}
        return replace(self, meta=meta, tokens=self.tokens.first(end), spans=spans)

    def with_version(self, run_id: str, version: int) -> Self:
        """Return the answer. If SGLang has given no versions yet, all tokens of the answer get `version`."""
        if self.spans:
            return self
        spans = [_Span(weights_name(run_id, version), 0, self.tokens.count)]
        return replace(self, tokens=replace(self.tokens, versions=_versions(spans, self.tokens.count)), spans=spans)


def array(items: bytes) -> msgspec.Raw:
    return msgspec.Raw(b"[%b]" % items)


def _items(value: msgspec.Raw) -> bytes:
    if (text := bytes(value)) == b"null":
        return b""
    if not text.startswith(b"["):
        raise msgspec.ValidationError("output_ids and output_token_logprobs must be arrays")
    return text[1:-1].strip()


def _versions(spans: list[_Span], count: int) -> list[int]:
    versions = [0] * count
    for span in spans:
        name, end = parse_name(str(span.version)), min(span.end, count)
        if name is not None:
            versions[span.start : end] = [name[1]] * (end - span.start)
    return versions
