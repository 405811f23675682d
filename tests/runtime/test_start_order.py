"""In which order a deployment starts what runs on GPUs; engines and Ray are left out, since there is no card."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from rose.runtime import deployment as module
from rose.runtime.deployment import Deployment
from tests.runtime.test_memory_plan import SHAPE, fleet


class Noted:
    """The parts of a deployment that start something, each of which only says when it would."""

    def __init__(self):
        self.order = []

    def serving(self, devices, **_options):
        started = [device.device_id for device in devices if device.spec is not None]
        return SimpleNamespace(
            launch=lambda: self.order.append(f"launch serving on {', '.join(started)}"),
            wait_ready=lambda _tend: self.order.append("serving is up"),
            attach=lambda _tend: None,
            check=lambda: None,
        )

    def start(self, part):
        self.order.append(part.name)
        return part

    def ignore(self, *_arguments, **_options):
        return []

    wait_begun = call = wait = ignore


@pytest.fixture
def order(tmp_path, monkeypatch):
    """What `Deployment` starts for a fleet, in order."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))

    def started(made):
        noted = Noted()
        monkeypatch.setattr(module, "ServingEngines", noted.serving)
        monkeypatch.setattr(module, "RlLoop", lambda **_parts: SimpleNamespace(publish_first=lambda: None))
        deployment = Deployment(made.model_copy(update={"ledger": tmp_path / "ledger"}), lambda _text: None)
        deployment._cluster = SimpleNamespace(start=lambda: None)
        deployment._supervisor = noted
        deployment._start_fork_server = lambda: None
        deployment._start(tmp_path, tmp_path)
        return [name for name in noted.order if "agent" in name or "serving" in name]

    return started


def test_a_rollout_engine_on_the_gpu_of_a_serving_engine_starts_when_that_is_up(order):
    assert order(fleet()) == [
        "launch serving on lent",
        "the agent of own",
        "serving is up",
        "the agent of lent",
    ]


def test_beside_serving_of_its_owner_s_and_on_cores_nothing_is_waited_for(order):
    for made in (fleet(lent={"serving_url": "http://127.0.0.1:30000"}), fleet(gpus=False)):
        assert order(made)[1:] == ["the agent of lent", "the agent of own", "serving is up"]
