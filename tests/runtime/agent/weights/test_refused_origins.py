import sys
from contextlib import contextmanager
from dataclasses import replace

import fsspec
import pytest
import torch
from aiohttp import web

from rose.runtime.agent.weights import weight_keeper
from rose.runtime.agent.weights.relays import Relays
from rose.runtime.agent.weights.sync import Target
from rose.runtime.agent.weights.weight_keeper import WeightKeeper
from rose.transfer.errors import TransferError
from rose.transfer.wire.origin import open_origin
from rose.transfer.wire.origin_rules import STRICT
from rose.transfer.wire.server import Server, StoreServer
from tests.runtime.agent.agents_in_turn import until
from tests.runtime.coserving.hand_made_engine import HandMadeEngine, published, random_weights, stepped, sync_of

FIRST = random_weights()
HERE = replace(STRICT, client="127.0.0.1")

URLS = [
    "dbfs://x/y",
    "jupyter://x",
    "generic://x",
    "async_wrapper://x",
    "tar://::file:///etc/hostname",
    "zip://::file:///etc/hostname",
    "reference://::http://192.0.2.1/r.json",
    "file:///etc",
    "http://[::1",
    "http://169.254.169.254/latest/meta-data",
    "gs://broken",
]


class Broken(fsspec.AbstractFileSystem):
    def __init__(self, *_arguments, **_options):
        raise KeyError("settings")


@pytest.fixture(autouse=True)
def broken(monkeypatch):
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "gs", Broken)


@pytest.fixture
def made(tmp_path):
    running = Relays(tmp_path / "relays", 1 << 24, lambda _url: "intra-zone", STRICT)
    yield running
    running.stop()


@pytest.fixture
def sync(made, tmp_path):
    engine = HandMadeEngine(tmp_path / "engine", FIRST, dtype=torch.bfloat16)
    return sync_of(engine, via=made.via)


@pytest.fixture
def aimed(sync, monkeypatch):
    monkeypatch.setattr(weight_keeper, "BACK_OFF_FIRST_S", 0.02)
    running = WeightKeeper(
        "d0", lambda: sync, 0, coming=lambda _: None, take_out=lambda _: None, record=lambda event: None
    )
    running.start()
    yield running
    running.stop()


@contextmanager
def answering(status, text, **headers):
    paths = []

    async def answer(request):
        paths.append(request.path)
        return web.Response(status=status, text=text, headers=headers, reason="hidden-reason")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    with Server(app, "127.0.0.1", 0, None) as server:
        yield server.url, paths


def test_neither_an_origin_nor_a_relay_is_opened_there(made, elsewhere):
    for url in URLS:
        with pytest.raises(TransferError):
            open_origin(url, None, rules=STRICT)
        with pytest.raises(TransferError):
            made.via(Target("a", 1, url))


def test_the_thread_that_brings_an_engine_to_its_target_outlives_all_of_them(aimed, sync, tmp_path):
    for url in URLS:
        aimed.aim(Target("a", 1, url))
        until(lambda url=url: aimed.failed is not None and aimed._newest.url == url)
        assert "TransferError" in aimed.failed
    store = published(tmp_path / "store", [FIRST, stepped(FIRST, 1)], run_id="a")
    with StoreServer(store) as server:
        aimed.aim(Target("a", 1, server.url, rules=HERE))
        until(lambda: sync.held == ("a", 1))
    assert aimed.failure is None


@pytest.mark.parametrize(("name", "by_a_relay"), [("127.0.0.1", False), ("localhost", False), ("localhost", True)])
def test_loopback_of_a_host_is_asked_nothing_that_its_own_client_did_not_publish(sync, name, by_a_relay, request):
    rules = replace(STRICT, client="10.0.0.7")
    if by_a_relay:
        request.getfixturevalue("elsewhere")
        rules = STRICT
    with answering(200, "hidden") as (url, paths):
        assert "is loopback" in sync.bring(Target("a", 1, url.replace("127.0.0.1", name), rules=rules)).reason
        assert paths == []


@pytest.mark.parametrize(
    ("status", "by_a_relay"), [(401, False), (404, False), (409, False), (500, False), (403, True)]
)
def test_a_reason_says_the_status_of_an_answer_and_nothing_of_what_it_says(sync, status, by_a_relay, request):
    if by_a_relay:
        request.getfixturevalue("elsewhere")
    with answering(status, "hidden-secret") as (url, paths):
        reason = sync.bring(Target("a", 1, url, rules=HERE)).reason
    assert paths
    assert f"{url}/v1/pins answered {status}" in reason
    assert "hidden" not in reason


def test_a_redirect_is_not_followed(sync):
    with answering(200, "hidden") as (inner, inner_paths):
        with answering(302, "", Location=f"{inner}/v1/packages") as (url, _):
            assert "answered 302" in sync.bring(Target("a", 1, url, rules=HERE)).reason
        assert inner_paths == []
