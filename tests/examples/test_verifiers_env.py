"""The example with `verifiers` itself, against a controller whose engine speaks."""

import asyncio
import importlib
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "verifiers_env.py"


@pytest.mark.parametrize(("says", "reward"), [("a b c", 0.0), ("a 7", 1 / 3)])
async def test_it_is_evaluated_on_a_fleet(speaking, monkeypatch, says, reward):
    pytest.importorskip("verifiers", reason="verifiers is not installed: pip install 'verifiers>=0.4', without SGLang")
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    async with speaking(says) as (_, url, server, engine):
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        example = importlib.import_module("verifiers_env")  # By this name it finds itself.
        assert await asyncio.wait_for(example.main("words", 2), 60) == pytest.approx(reward)
        assert len(engine.requests) == 6
        (run,) = server.controller.runs
        assert run.facts.tags["token"] == "anyone"


def test_it_is_short():
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 60
