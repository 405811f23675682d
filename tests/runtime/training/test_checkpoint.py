import os
from pathlib import Path

import pytest

from rose.config import TaskConfig, TrainingConfig
from rose.runtime.models.policy_model import Policy, PolicyShape
from rose.runtime.training.checkpoint import Checkpoint
from rose.runtime.training.loop import step_event
from rose.runtime.training.trainer import Trainer


class Disk:
    """The files of a folder that would survive a power cut: synced names of synced content."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._fsync = folder, os.fsync
        self._files: set[int] = set()
        self.lasting: dict[str, int] = {}

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        self._files.add(os.fstat(descriptor).st_ino)
        if Path(f"/proc/self/fd/{descriptor}").readlink() == self._folder:
            names = {path.name: path.stat().st_ino for path in self._folder.iterdir()}
            self.lasting = {name: inode for name, inode in names.items() if inode in self._files}

    def has(self, name: str) -> bool:
        return self.lasting.get(name) == (self._folder / name).stat().st_ino


def test_what_is_kept_lasts_through_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    Policy(PolicyShape(hidden_size=32, intermediate_size=32, num_hidden_layers=2)).save(tmp_path / "model")
    trainer = Trainer(tmp_path / "model", TrainingConfig())
    kept = Checkpoint(tmp_path / "kept")
    disk = Disk(tmp_path / "kept")
    monkeypatch.setattr(os, "fsync", disk.fsync)
    kept.begin("grpo-1", TaskConfig(), TrainingConfig())
    assert disk.has("run.json")
    for step in range(2):
        stats = trainer.update([])
        event = step_event(step, stats, [], rollout_ns=0, train_ns=0, total_ns=0)
        kept.save_update(trainer, [], event)
        assert disk.has("trainer.pt")
        kept.save_step(event)
        assert disk.has("step.json")
    kept.close()
