import importlib
import pkgutil

import msgspec
import pytest
from pydantic import BaseModel, ValidationError

import rose.pricing.api
import rose.runtime.scheduling
import rose.transfer
from rose.runtime.scheduling.messages import REASON_LENGTH_MAX, HostFacts, OpenRun
from rose.transfer.wire.origin_rules import OriginRules
from tests.runtime.scheduling.stand_ins import beat, call, gateway, open_run, post, publish, report

SECRET = {"fence": 1, "version": 0, "url": "http://x", "token": ["hidden"]}
OPENING = {"name": "n", "model": "m"}
#: Path, body, and how the refusal begins. None repeats a prompt or a secret.
NO_URLS = ["nope", "http://", "http:///v1", "s3://", "://x", "http://x:port", "http://[::1", "file:///disk"]
NO_URLS += ["dbfs://x/y", "reference://::http://x/r.json", "s3://bucket/x::http://x"]
REFUSED = [
    ("/runs", {"name": "n"}, "model: Field required"),
    ("/runs", {"name": "", "model": "m"}, "name is '': "),
    ("/runs", {**OPENING, "key": ""}, "key is '': "),
    ("/runs", {**OPENING, "weight": 0}, "weight is 0: "),
    ("/runs", {**OPENING, "expires_s": 99999}, "expires_s is 99999: Input should be less than or"),
    ("/runs", {**OPENING, "tags": {"a": 1}}, "tags.a is 1: Input should be a valid string"),
    ("/runs", {**OPENING, "colour": "red"}, "colour: Extra inputs"),
    ("/runs", {"name": "n" * 300, "model": "m"}, "name: String should have at most 256"),
    ("/runs", [], "the body: Input should be an object"),
    ("/runs/ID/renew", {}, "fence: Field required"),
    ("/runs/ID/versions", {"fence": 1, "version": -1, "url": "http://x"}, "version is -1: "),
    ("/runs/ID/versions", SECRET, "token: Input should be a valid string"),
    ("/runs/ID/versions", {**SECRET, "token": "hidden", "tokens": "hidden"}, "tokens: Extra inputs"),
    ("/runs/ID/versions", {**SECRET, "token": "hidden\n"}, "token must be printable ASCII"),
    ("/runs/ID/versions", {**SECRET, "token": "h\u00efdden"}, "token must be printable ASCII"),
    (
        "/runs/ID/versions",
        {**SECRET, "url": "s3://bucket/folder", "token": "hidden"},
        "token is given, but 's3://bucket/folder' uses fsspec's credentials",
    ),
    ("/runs/ID/versions", "hidden", "the body: Invalid JSON"),
    ("/runs/ID/events", {"fence": 1, "events": []}, "events: "),
    ("/runs/ID/events", {"fence": 1, "events": [{"kind": "lease"}]}, "kind is 'lease'"),
    ("/runs/ID/generate", {"input_ids": ["hidden"]}, "input_ids.0: Expected `int`"),
    ("/heartbeat", {"device_id": "d"}, "engines: Field required"),
    ("/heartbeat", {"device_id": "d", "engines": [], "hold_s": 11}, "hold_s is 11: "),
    ("/preempt", {"engine_id": "e0", "kv_tokens": -1, "reason": "x"}, "kv_tokens is -1: "),
    *(("/runs/ID/versions", {"fence": 1, "version": 0, "url": url}, f"url is {url!r}: ") for url in NO_URLS),
]
FOLDERS = (rose.runtime.scheduling, rose.transfer, rose.pricing.api)


async def test_a_refusal_names_the_field_and_a_short_value_or_a_similar_run_and_no_prompt_or_secret():
    async with gateway() as (session, _):
        opened = await open_run(session)
        for path, body, error in REFUSED:
            status, answer = await post(session, path.replace("ID", opened["run_id"]), body)
            text = (
                answer["error"]["message"].removeprefix("the body: ")
                if error.startswith("token ")
                else answer["error"]["message"]
            )
            assert (status, text[: len(error)]) == (400, error)
            assert "hidden" not in text
        for url, token in (("http://me:hidden@x", None), ("s3://me:hidden@x", "t"), ("http://x?key=hidden", None)):
            status, answer = await publish(session, opened, url=url, token=token)
            assert (status, "url" in answer["error"]["message"] or "token" in answer["error"]["message"]) == (400, True)
            assert "hidden" not in answer["error"]["message"]
        for method, path in (("GET", ""), ("POST", "/generate"), ("POST", "/renew"), ("DELETE", "")):
            body = {"input_ids": [1]} if path == "/generate" else {"fence": 1}
            status, answer = await call(session, method, f"/runs/{opened['run_id'][:-1]}{path}", body)
            assert (status, opened["run_id"] in answer["error"]["message"]) == (404, True)


async def test_a_fleet_file_may_let_runs_publish_files_and_name_hosts():
    rules = OriginRules(files=True, hosts=("169.254.7.0/24",))
    async with gateway(origins=rules) as (session, _):
        opened = await open_run(session)
        for version, url in enumerate(("file:///disk", "http://169.254.7.7:5", "http://x")):
            assert (await publish(session, opened, version, url))[0] == 200
        status, answer = await publish(session, opened, 3, "http://169.254.169.254/latest")
        assert (status, answer["error"]["message"]) == (
            400,
            "url names host '169.254.169.254', whose address 169.254.169.254 is link-local: publish at an address "
            "that the fleet's hosts reach, or name the host in origins.hosts of the fleet file",
        )


async def test_a_client_of_the_controller_s_host_may_publish_at_loopback_and_one_behind_a_proxy_may_not():
    async with gateway() as (session, _):
        opened = await open_run(session)
        session.headers["X-Forwarded-For"] = "10.0.0.7"
        assert (await publish(session, opened, 0, "http://127.0.0.1:5"))[0] == 400
        del session.headers["X-Forwarded-For"]
        assert (await publish(session, opened, 0, "http://127.0.0.1:5"))[0] == 200
        reply = await beat(session, report("http://x", run_id=opened["run_id"]), hold_s=0.0)
        (target,) = reply["targets"].values()
        assert (target["url"], target["client_address"]) == ("http://127.0.0.1:5", "127.0.0.1")


def messages():
    for folder in FOLDERS:
        for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
            own = [kind for kind in vars(importlib.import_module(module.name)).values() if isinstance(kind, type)]
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


@pytest.mark.parametrize("kind", messages(), ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_every_field_has_a_bound(kind):
    schema = kind.model_json_schema() if issubclass(kind, BaseModel) else msgspec.json.schema(kind)
    assert [place for place in unbounded(schema, kind.__name__) if not place.endswith(LISTS_OF_AN_ANSWER)] == []


def test_a_host_s_long_failure_is_cut_and_its_figures_are_finite():
    assert len(report("http://e", failed="x" * 100_000).failed or "") == REASON_LENGTH_MAX
    assert len(HostFacts(problem="x" * 100_000).problem or "") == REASON_LENGTH_MAX
    for text in ("NaN", "Infinity", "-1", "1e400", "1" + "0" * 400):
        with pytest.raises(ValidationError, match="waiting_s"):
            HostFacts.model_validate_json(f'{{"waiting_s": {text}}}')


def test_a_run_has_as_many_tags_as_a_price_book_could_use():
    opening = {"name": "n", "model": "m"}
    tags = {f"{number:02}{'k' * 254}": "v" * 256 for number in range(64)}
    assert OpenRun(**opening, tags=tags).tags == tags
    for wrong in ({**tags, "one": "more"}, {"k" * 257: "v"}, {"k": "v" * 257}):
        with pytest.raises(ValidationError, match="tags"):
            OpenRun(**opening, tags=wrong)
