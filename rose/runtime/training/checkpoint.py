"""The checkpoint of a trainer. If the trainer is killed at any moment, the next one continues after the last update.

    run.json         the run's id, and its tables `task` and `training` at the start
    trainer.pt       policy, optimiser and results of the last update; written before its version is published
    step.json        the last step's event, written before it is recorded
    weights/         the published versions
    lock             held by the working trainer

Each file is replaced as a whole. An event that is recorded again after a restart is identical, and counts once."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose.config import TaskConfig, TrainingConfig
from rose.errors import UserError
from rose.events import Step, Verdict
from rose.ledger.files import layout
from rose.ledger.files.layout import TakenError, replace_file

if TYPE_CHECKING:
    from rose.runtime.training.trainer import Trainer


#: Fields that do not change learning.
_MAY_CHANGE = {"steps", "threads", "python", "call_s_max", "memory_mb_max", "observation_bytes_max"}


class CheckpointError(UserError):
    """The folder cannot be used, another trainer uses it, or its run cannot go on with these settings."""


class Checkpoint:
    """The folder of one trainer, locked until `close`. Raises CheckpointError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = layout.take(folder / "lock")
        except TakenError as error:
            problem = f"another trainer, pid {error}, works in {folder}"
            raise CheckpointError(f"{problem}: end it, or give another folder") from None
        except OSError as error:
            problem = f"--checkpoint {folder} cannot be used ({error.strerror})"
            raise CheckpointError(f"{problem}: give a folder that this user can write") from None

    def close(self) -> None:
        os.close(self._lock)

    def run_id(self) -> str | None:
        content = self._read("run.json")
        return None if content is None else str(content["run_id"])

    def begin(self, run_id: str, task: TaskConfig, training: TrainingConfig) -> None:
        self._write("run.json", {"run_id": run_id, "task": task.model_dump(), "training": training.model_dump()})

    def check_same(self, task: TaskConfig, training: TrainingConfig) -> None:
        content = self._read("run.json") or {}
        for table, now in (("task", task.model_dump()), ("training", training.model_dump())):
            recorded = content.get(table, now)
            for field in now.keys() - _MAY_CHANGE:
                if recorded.get(field, now[field]) != now[field]:
                    problem = f"{table}.{field} is {now[field]!r} but the run began with {recorded[field]!r}"
                    raise CheckpointError(f"{problem}: restore it, or start another run outside {self.folder}")

    def save_update(self, trainer: Trainer, verdicts: list[Verdict], event: Step) -> None:
        pending = {"verdicts": [asdict(verdict) for verdict in verdicts], "step": asdict(event)}
        trainer.save(self.folder / "trainer.pt", json.dumps(pending))

    def load_update(self, trainer: Trainer) -> tuple[list[Verdict], Step] | None:
        path = self.folder / "trainer.pt"
        if not path.exists():
            return None
        pending = json.loads(trainer.resume(path))
        return [Verdict(**verdict) for verdict in pending["verdicts"]], Step(**pending["step"])

    def save_step(self, event: Step) -> None:
        self._write("step.json", asdict(event))

    def load_step(self, step: int) -> Step | None:
        content = self._read("step.json")
        return None if content is None or content["step"] != step else Step(**content)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(f"{self.folder / name} is damaged ({error}): start another run in another folder")
        return content

    def _write(self, name: str, content: dict[str, Any]) -> None:
        partial = self.folder / f"{name}.partial"
        partial.write_text(json.dumps(content), encoding="utf-8")
        replace_file(partial, self.folder / name)
