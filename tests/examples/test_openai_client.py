"""The example against a controller whose engine speaks."""

import asyncio
import json
import runpy
from pathlib import Path

from tests.runtime.scheduling.gateway.conftest import CALL

PROGRAM = Path(__file__).parents[2] / "examples" / "openai_client.py"


async def run(monkeypatch, url, key="none"):
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", key)
    await asyncio.to_thread(runpy.run_path(str(PROGRAM))["main"], "words")


async def test_it_completes_chats_and_streams(speaking, monkeypatch, capsys):
    async with speaking() as (_, url, _, engine):
        await run(monkeypatch, url)
        lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
        assert json.loads(lines.pop("log probabilities")) == [-0.5] * 3
        assert lines == {"completion": "a b c", "chat": "a b c", "tools": "a b c", "stream": "a b c"}
        assert len(engine.requests) == 4


async def test_it_answers_the_model_s_tool_calls(speaking, monkeypatch, capsys):
    """The engine calls the tool each time, so that the example stops asking."""
    async with speaking(f"<tool_call> {CALL} </tool_call> <end>") as (_, url, _, engine):
        await run(monkeypatch, url)
        assert "tools: 1\n" in capsys.readouterr().out
        assert len(engine.requests) == 3 + 4


async def test_its_key_is_the_fleet_s_token(speaking, monkeypatch):
    async with speaking(token="token-of-the-tests", published=False) as (_, url, server, _):
        await run(monkeypatch, url, "token-of-the-tests")
        (opened,) = server.controller.runs
        assert opened.facts.tags["token"] == "gateway.token"


def test_it_is_short():
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 60
