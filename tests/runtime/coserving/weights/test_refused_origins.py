"""URLs that must not be fetched from, and origins that answer something else: the agent's threads outlive them all."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace

import fsspec
import pytest
import torch
from aiohttp import web

from rose.runtime.coserving.weights import relays, weight_keeper
from rose.runtime.coserving.weights.relays import Relays
from rose.runtime.coserving.weights.sync import EngineSync, Target
from rose.runtime.coserving.weights.weight_keeper import WeightKeeper
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.origin import open_origin
from rose.runtime.transfer.wire.origin_rules import STRICT
from rose.runtime.transfer.wire.server import Server, StoreServer
from tests.runtime.coserving.agents_in_turn import until
from tests.runtime.coserving.hand_made_engine import HandMadeEngine, random_weights, shape, stepped

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
    """A kind of storage with an error of its own, as it is opened."""

    def __init__(self, *_arguments, **_options):
        raise KeyError("settings")


@pytest.fixture(autouse=True)
def broken(monkeypatch):
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "gs", Broken)


@pytest.fixture
def made(tmp_path):
    """The relays of a host whose fleet file names no origins."""
    running = Relays(tmp_path / "relays", 1 << 24, lambda _url: "intra-zone", STRICT)
    yield running
    running.stop()


@pytest.fixture
def elsewhere(monkeypatch):
    """All that is published is on another host, as far as the relays know."""
    monkeypatch.setattr(relays, "is_here", lambda _url: False)


@pytest.fixture
def sync(made, tmp_path):
    engine = HandMadeEngine(tmp_path / "engine", FIRST, dtype=torch.bfloat16)
    return EngineSync(engine, engine.staging, device_id="d0", via=made.via)


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
    """(its URL, the paths it was asked for)"""
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
    store = VersionStore(tmp_path / "store", run_id="a", model=shape())
    store.publish(0, FIRST)
    store.publish(1, stepped(FIRST, 1))
    with StoreServer(store) as server:
        aimed.aim(Target("a", 1, server.url, rules=HERE))
        until(lambda: sync.held == ("a", 1))
    assert aimed.failure is None


def test_loopback_of_a_host_is_asked_nothing_that_its_own_client_did_not_publish(made, sync):
    with answering(200, "hidden") as (url, paths):
        for place in (url, url.replace("127.0.0.1", "localhost")):
            event = sync.bring(Target("a", 1, place, rules=replace(STRICT, client="10.0.0.7")))
            assert "is loopback" in event.reason
        assert paths == []


def test_a_name_that_leads_to_loopback_is_found_out_as_a_relay_connects(sync, elsewhere):
    with answering(200, "hidden") as (url, paths):
        event = sync.bring(Target("a", 1, url.replace("127.0.0.1", "localhost")))
        assert "is loopback" in event.reason
        assert paths == []


@pytest.mark.parametrize("status", [401, 404, 409, 500])
def test_a_reason_says_the_status_of_an_answer_and_nothing_of_what_it_says(sync, status):
    with answering(status, "hidden-secret") as (url, paths):
        reason = sync.bring(Target("a", 1, url, rules=HERE)).reason
    assert paths
    assert f"{url}/v1/pins answered {status}" in reason
    assert "hidden" not in reason


def test_nor_does_a_relay_pass_it_on_although_it_says_what_failed(sync, elsewhere):
    with answering(403, "hidden-secret") as (url, paths):
        reason = sync.bring(Target("a", 1, url, rules=HERE)).reason
    assert paths
    assert f"{url}/v1/pins answered 403" in reason
    assert "hidden" not in reason


def test_a_redirect_is_not_followed(sync):
    with answering(200, "hidden") as (inner, inner_paths):
        with answering(302, "", Location=f"{inner}/v1/packages") as (url, _):
            assert "answered 302" in sync.bring(Target("a", 1, url, rules=HERE)).reason
        assert inner_paths == []
