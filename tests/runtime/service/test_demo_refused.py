"""A demo leaves a fleet alone that runs on its ledger."""

from __future__ import annotations

import threading

import pytest

from rose.config_demo import demo
from rose.runtime import preflight
from rose.runtime.errors import DeploymentError
from rose.runtime.service import local_ray, places
from rose.runtime.service.demo import run


def test_a_second_demo_on_a_ledger_is_refused(tmp_path, monkeypatch):
    config = demo([0, 1], ledger=tmp_path / "ledger")
    monkeypatch.setattr(preflight, "check", lambda _config: None)
    monkeypatch.setattr(local_ray, "find", {places.state_folder(config): "127.0.0.1:1"}.get)
    with pytest.raises(DeploymentError, match="runs already"):
        run(config, print, threading.Event())
    assert not (tmp_path / "ledger").exists()
