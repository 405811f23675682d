"""What each scope of a named token opens at the controller."""

from __future__ import annotations

import asyncio
import json

import pytest

from rose import tokens
from rose.client.address import authorization
from rose.ledger.address import OpenAddressError
from rose.ledger.reading.query import query
from rose.runtime.scheduling.gateway import Gateway
from tests.runtime.scheduling.stand_ins import gateway

OPERATOR = "token-of-the-operator"


@pytest.fixture
def secrets(tmp_path):
    store = tmp_path / "tokens.json"
    return {
        "host": tokens.create(store, "host", (), ("host.*",)),
        "finance": tokens.create(store, "finance", ("read",)),
        "player": tokens.create(store, "player", ("generate",)),
        "trainer": tokens.create(store, "trainer", ("generate", "publish")),
        "boss": tokens.create(store, "boss", ("admin",)),
        "operator": OPERATOR,
    }


def test_each_scope_opens_its_own_paths_and_no_other(tmp_path, secrets):
    asked = {
        "status": ("GET", "/status", None),
        "runs": ("GET", "/runs", None),
        "open": ("POST", "/runs", {"name": "x"}),
        "turn": ("POST", "/runs/none/generate", {"input_ids": [1]}),
        "drain": ("POST", "/devices/none/drain", {}),
        "select": ("POST", "/ledger/query", {"sql": "FROM lease"}),
        "segment": ("PUT", "/ledger/segments/live/host.agent/000000/x", None),
    }

    async def scenario():
        opened = {}
        options = {"tokens_file": tmp_path / "tokens.json", "ledger": tmp_path / "ledger"}
        async with gateway(OPERATOR, **options) as (session, _):
            for name, secret in {**secrets, "nobody": "", "stranger": "x" * 20}.items():
                for what, (method, path, body) in asked.items():
                    headers = authorization(secret)
                    async with session.request(method, path, data=body and json.dumps(body), headers=headers) as answer:
                        assert answer.status != 500
                        if answer.status not in (401, 403):
                            opened.setdefault(name, set()).add(what)
        return opened

    looks = {"status", "runs"}
    assert asyncio.run(scenario()) == {
        "host": {"segment"},
        "finance": looks | {"select"},
        "player": looks | {"turn"},
        "trainer": looks | {"turn", "open"},
        "boss": set(asked),
        "operator": set(asked),
    }
    readers = query(tmp_path / "ledger", "SELECT who FROM access WHERE action = 'query' ORDER BY ALL").rows
    assert readers == [("boss",), ("finance",), ("gateway.token",)]


def test_a_controller_that_was_given_no_ledger_serves_none(secrets):
    async def scenario():
        async with gateway(OPERATOR) as (session, _):
            async with session.post("/ledger/query", data='{"sql": "FROM lease"}') as answer:
                return answer.status

    assert asyncio.run(scenario()) == 404


def test_named_tokens_guard_an_address_that_others_reach(tmp_path, secrets):
    Gateway("0.0.0.0", 0, tokens_file=tmp_path / "tokens.json")
    with pytest.raises(OpenAddressError):
        Gateway("0.0.0.0", 0)
