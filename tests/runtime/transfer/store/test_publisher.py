from __future__ import annotations

import logging
import resource
from pathlib import Path

import pytest
import torch

from rose.runtime.transfer.store.store import Publisher, VersionStore


def weights(version: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((64, 64), 1 + version / 128, dtype=torch.bfloat16)}


def test_a_version_is_visible_at_once_and_whole_after_a_wait(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, anchor_every=2)
    publisher = Publisher(store)
    for version in range(5):
        publisher.publish(version, weights(version))
        assert store.latest() == version
    publisher.wait()
    assert {package.base_version for package in store.packages() if package.version == 4} == {3, 2, None}


def test_a_trainer_goes_on_if_only_the_rest_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = VersionStore(tmp_path, anchor_every=1)
    publisher = Publisher(store)
    publisher.publish(0, weights(0))
    publisher.wait()

    # There is room for the delta, and not for the anchor of 8 KiB.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with caplog.at_level(logging.WARNING):
            publisher.publish(1, weights(1))
            publisher.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.latest() == 1
    assert "version 1 is published, but more that leads there cannot be written" in caplog.text
    publisher.publish(2, weights(2))
    publisher.wait()
    assert {package.base_version for package in store.packages() if package.version == 2} == {1, 0, None}
