"""What is refused over HTTP, and what of it the refusal says."""

from __future__ import annotations

import asyncio

import pytest

from rose.runtime.transfer.wire.origin_rules import OriginRules
from tests.runtime.scheduling.stand_ins import beat, call, gateway, open_run, post, publish, report


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/runs", {"name": "n"}, "model"),
        ("/runs", {"name": "", "model": "m"}, "name"),
        ("/runs", {"name": "n", "model": "m", "key": ""}, "key"),
        ("/runs", {"name": "n", "model": "m", "weight": 0}, "weight"),
        ("/runs", {"name": "n", "model": "m", "expires_s": 0}, "expires_s"),
        ("/runs", {"name": "n", "model": "m", "tags": {"a": 1}}, "tags.a"),
        ("/runs", {"name": "n", "model": "m", "colour": "red"}, "colour"),
        ("/runs/ID/renew", {}, "fence"),
        ("/runs/ID/versions", {"fence": 1, "version": -1, "url": "http://x"}, "version"),
        ("/runs/ID/events", {"fence": 1, "events": []}, "events"),
        ("/runs/ID/events", {"fence": 1, "events": [{"kind": "lease"}]}, "'lease'"),
        ("/runs/ID/generate", {"input_ids": []}, "input_ids"),
        ("/runs/ID/generate", {"input_ids": [1], "rose": {"key": ""}}, "rose.key"),
    ],
)
def test_bad_input_is_refused_by_name(path, body, named):
    async def scenario():
        async with gateway() as (session, _):
            opened = await open_run(session)
            status, answer = await post(session, path.replace("ID", opened["run_id"]), body)
            assert (status, named in answer["error"]) == (400, True), answer

    asyncio.run(scenario())


SECRET = {"fence": 1, "version": 0, "url": "http://x", "token": ["hidden"]}


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/runs", {"name": "n", "model": "m", "expires_s": 99999}, "expires_s is 99999: Input should be less than or"),
        ("/runs", {"name": "n", "model": "m", "tags": {"a": 1}}, "tags.a is 1: Input should be a valid string"),
        ("/runs", {"name": "n" * 300, "model": "m"}, "name: String should have at most 256"),
        ("/runs", {"name": "n"}, "model: Field required"),
        ("/runs", [], "the body: Input should be an object"),
        ("/runs/ID/versions", SECRET, "token: Input should be a valid string"),
        ("/runs/ID/versions", {**SECRET, "token": "hidden", "tokens": "hidden"}, "tokens: Extra inputs"),
        ("/runs/ID/versions", "hidden", "the body: Invalid JSON"),
        ("/runs/ID/generate", {"input_ids": "hidden"}, "input_ids: Input should be a valid array"),
        ("/runs/ID/generate", {"input_ids": ["hidden"]}, "input_ids.0: Input should be a valid integer"),
        ("/runs/ID/generate", {"input_ids": [1, -2]}, "input_ids.1: Input should be greater than"),
        ("/runs/ID/generate", {"input_ids": [1], "rose": {"step": -1}}, "rose.step is -1: Input should be greater"),
        ("/runs/ID/generate", {"input_ids": [1], "rose": [1]}, "rose: Input should be an object"),
    ],
)
def test_a_refusal_says_a_short_value_and_neither_a_prompt_nor_a_secret(path, body, error):
    async def scenario():
        async with gateway() as (session, _):
            opened = await open_run(session)
            status, answer = await post(session, path.replace("ID", opened["run_id"]), body)
            assert (status, answer["error"].startswith(error)) == (400, True), answer
            assert "hidden" not in answer["error"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "nope",
        "http://",
        "http:///v1",
        "s3://",
        "://x",
        "http://x:port",
        "http://[::1",
        "file:///disk",
        "dbfs://x/y",
        "reference://::http://x/r.json",
        "s3://bucket/x::http://x",
    ],
)
def test_weights_at_what_is_no_url_of_an_origin_are_refused(url):
    async def scenario():
        async with gateway() as (session, _):
            opened = await open_run(session)
            body = {"fence": 1, "version": 0, "url": url}
            status, answer = await post(session, f"/runs/{opened['run_id']}/versions", body)
            assert (status, answer["error"].startswith(f"url is {url!r}: ")) == (400, True), answer

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "token", "error"),
    [
        ("s3://bucket/folder", "hidden", "token is given, and 's3://bucket/folder' takes none"),
        ("http://x", "hidden\n", "token holds a character that is not printable ASCII"),
        ("http://x", "h\u00efdden", "token holds a character that is not printable ASCII"),
    ],
)
def test_a_token_that_no_engine_could_send_is_refused_where_it_is_published(url, token, error):
    async def scenario():
        async with gateway() as (session, _):
            opened = await open_run(session)
            body = {"fence": 1, "version": 0, "url": url, "token": token}
            status, answer = await post(session, f"/runs/{opened['run_id']}/versions", body)
            assert (status, error in answer["error"], "hidden" in answer["error"]) == (400, True, False), answer

    asyncio.run(scenario())


def test_a_password_in_a_url_is_refused_and_not_repeated():
    async def scenario():
        async with gateway() as (session, _):
            opened = await open_run(session)
            for url, token in (("http://me:hidden@x", None), ("s3://me:hidden@x", "t"), ("http://x?key=hidden", None)):
                status, answer = await publish(session, opened, url=url, token=token)
                assert (status, "url" in answer["error"] or "token" in answer["error"]) == (400, True)
                assert "hidden" not in answer["error"]

    asyncio.run(scenario())


def test_a_fleet_file_may_let_runs_publish_files_and_name_hosts():
    async def scenario():
        rules = OriginRules(files=True, hosts=("169.254.7.0/24",))
        async with gateway(origins=rules) as (session, _):
            opened = await open_run(session)
            for version, url in enumerate(("file:///disk", "http://169.254.7.7:5", "http://x")):
                assert (await publish(session, opened, version, url))[0] == 200
            status, answer = await publish(session, opened, 3, "http://169.254.169.254/latest")
            assert (status, answer["error"]) == (
                400,
                "url names host '169.254.169.254', whose address 169.254.169.254 is link-local: publish at an address "
                "that the fleet's hosts reach, or name the host in origins.hosts of the fleet file",
            )

    asyncio.run(scenario())


def test_a_client_of_the_controller_s_host_may_publish_at_loopback_and_one_behind_a_proxy_may_not():
    async def scenario():
        async with gateway() as (session, _):
            opened = await open_run(session)
            session.headers["X-Forwarded-For"] = "10.0.0.7"
            assert (await publish(session, opened, 0, "http://127.0.0.1:5"))[0] == 400
            del session.headers["X-Forwarded-For"]
            assert (await publish(session, opened, 0, "http://127.0.0.1:5"))[0] == 200
            reply = await beat(session, report("http://x", run_id=opened["run_id"]), hold_s=0.0)
            (target,) = reply["targets"].values()
            assert (target["url"], target["client_address"]) == ("http://127.0.0.1:5", "127.0.0.1")

    asyncio.run(scenario())


def test_a_run_that_nobody_opened_is_not_there():
    async def scenario():
        async with gateway() as (session, _):
            opened = await open_run(session)
            for method, path in (("GET", ""), ("POST", "/generate"), ("POST", "/renew"), ("DELETE", "")):
                body = {"input_ids": [1]} if path == "/generate" else {"fence": 1}
                status, answer = await call(session, method, f"/runs/{opened['run_id'][:-1]}{path}", body)
                assert (status, opened["run_id"] in answer["error"]) == (404, True)

    asyncio.run(scenario())
