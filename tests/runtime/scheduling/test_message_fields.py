"""Every field of every message that comes over HTTP is bounded: its numbers, its texts and how many there are."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec
import pytest
from pydantic import BaseModel, ValidationError

import rose.pricing.api
import rose.runtime.scheduling
import rose.runtime.transfer
from rose.runtime.scheduling.messages import REASON_LENGTH_MAX, EngineReport, HostFacts, OpenRun

FOLDERS = (rose.runtime.scheduling, rose.runtime.transfer, rose.pricing.api)


def messages():
    """Classes that what comes in is read as, by their full name."""
    for folder in FOLDERS:
        for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
            own = [kind for kind in vars(importlib.import_module(module.name)).values() if isinstance(kind, type)]
            # The fields of an engine's body are raw, and read one by one.
            yield from (
                kind
                for kind in own
                if kind.__module__ == module.name
                and issubclass(kind, (BaseModel, msgspec.Struct))
                and kind.__name__ != "_Body"
            )


BOUNDS = {
    "integer": ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}),
    "number": ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}),
    "string": ({"maxLength", "contentEncoding"},),
    "array": ({"maxItems"},),
    "object": ({"maxProperties"},),
}


#: Lists that are as long as the answer of an engine, which is bounded.
LISTS_OF_AN_ANSWER = ("versions", "spans")


def unbounded(schema, place):
    """Where a JSON schema lets a number, a text, a list or a table be of any size."""
    if isinstance(schema, list):
        for item in schema:
            yield from unbounded(item, place)
    elif isinstance(schema, dict):
        kind = str(schema.get("type"))
        # What a caller may add to the fields of an object has no schema.
        is_free = kind == "object" and schema.get("additionalProperties") in (None, True, False, {})
        is_bounded = all(bound & schema.keys() for bound in BOUNDS.get(kind, ()))
        if not (is_free or is_bounded or {"const", "enum"} & schema.keys()):
            yield place
        for name, part in schema.items():
            if name not in ("const", "enum", "default", "required"):
                yield from unbounded(part, f"{place}.{name}")


def test_the_messages_are_found():
    names = {kind.__name__ for kind in messages()}
    assert {"Heartbeat", "EngineReport", "OpenRun", "PublishVersion", "Labels", "AllocationQuery"} <= names


@pytest.mark.parametrize("kind", messages(), ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_every_field_has_a_bound(kind):
    schema = kind.model_json_schema() if issubclass(kind, BaseModel) else msgspec.json.schema(kind)
    assert [place for place in unbounded(schema, kind.__name__) if not place.endswith(LISTS_OF_AN_ANSWER)] == []


REPORT = {
    "engine_id": "e",
    "device_id": "d",
    "url": "http://e",
    "borrowed": False,
    "alive": True,
    "capacity": 8,
    "policy_version": 0,
    "lease_id": None,
    "lease_left_ns": None,
    "slack_ok": True,
}


def test_a_host_that_reports_a_long_failure_is_heard():
    assert len(EngineReport(**REPORT, failed="x" * 100_000).failed or "") == REASON_LENGTH_MAX
    assert len(HostFacts(problem="x" * 100_000).problem or "") == REASON_LENGTH_MAX


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-1", "1e400", "1" + "0" * 400])
def test_a_host_s_figures_are_finite(text):
    with pytest.raises(ValidationError, match="uptime_s"):
        HostFacts.model_validate_json(f'{{"uptime_s": {text}}}')


def test_a_run_has_as_many_tags_as_a_price_book_could_use():
    opening = {"name": "n", "model": "m"}
    tags = {f"{number:02}{'k' * 254}": "v" * 256 for number in range(64)}
    assert OpenRun(**opening, tags=tags).tags == tags
    for wrong in ({**tags, "one": "more"}, {"k" * 257: "v"}, {"k": "v" * 257}):
        with pytest.raises(ValidationError, match="tags"):
            OpenRun(**opening, tags=wrong)
