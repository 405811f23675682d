"""A trainer's checkpoint, from which a trainer that was killed at any moment continues after its last update.

    run.json         the run's id, and its tables at the start
    trainer.pt       policy, optimiser and results of the last update; written before its version is published
    step.json        the last step's event, written before it is recorded
    weights/         the published versions
    lock             held by the working trainer

Each file is replaced whole. Events recorded again after a restart are identical, and count once."""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rose.config import TaskConfig, TrainingConfig
from rose.errors import UserError
from rose.events import Step, Verdict
from rose.ledger.files.layout import replace_file

if TYPE_CHECKING:
    from rose.runtime.training.trainer import StepStats, Trainer


#: Fields of the tables that leave learning the same.
_MAY_CHANGE = {"steps", "threads", "python", "call_s_max", "memory_mb_max", "observation_bytes_max"}


class CheckpointError(UserError):
    """The folder belongs to another trainer or run, holds no run, or cannot be used."""


class Checkpoint:
    """The folder of one trainer, locked until `close`. Raises CheckpointError if it is taken or cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _locked(folder / "lock")
        except OSError as error:
            raise CheckpointError(
                f"--checkpoint {folder} cannot be used ({error.strerror}): give a folder that this user may write to"
            ) from None

    @property
    def weights(self) -> Path:
        return self.folder / "weights"

    def close(self) -> None:
        self._lock.close()

    def run_id(self) -> str | None:
        kept = self._read("run.json")
        return None if kept is None else str(kept["run_id"])

    def begin(self, run_id: str, task: TaskConfig, training: TrainingConfig) -> None:
        self._write("run.json", {"run_id": run_id, "task": task.model_dump(), "training": training.model_dump()})

    def check_same(self, task: TaskConfig, training: TrainingConfig) -> None:
        """Raise CheckpointError naming the first field that differs from the run's start."""
        kept = self._read("run.json") or {}
        for table, now in (("task", task.model_dump()), ("training", training.model_dump())):
            before = kept.get(table, now)
            for field in now.keys() - _MAY_CHANGE:
                if before.get(field, now[field]) != now[field]:
                    raise CheckpointError(
                        f"{table}.{field} is {now[field]!r} and the run in {self.folder} was begun with "
                        f"{before[field]!r}: set it back, or begin another run in another folder"
                    )

    def tables(self) -> tuple[TaskConfig, TrainingConfig] | None:
        if (kept := self._read("run.json")) is None:
            return None
        return TaskConfig.model_validate(kept["task"]), TrainingConfig.model_validate(kept["training"])

    def save_update(self, trainer: Trainer, step: int, stats: StepStats, verdicts: list[Verdict], event: Step) -> None:
        """Keep an update and its records; `event` lacks facts that are only known after publication."""
        pending = {"verdicts": [asdict(verdict) for verdict in verdicts], "step": asdict(event)}
        trainer.save(self.folder / "trainer.pt", step, stats, json.dumps(pending))

    def load_update(self, trainer: Trainer) -> tuple[list[Verdict], Step] | None:
        """Restore a trainer's last update, and return its records; None without an update."""
        path = self.folder / "trainer.pt"
        if not path.exists():
            return None
        trainer.resume(path)
        pending = json.loads(trainer.note)
        return [Verdict(**verdict) for verdict in pending["verdicts"]], Step(**pending["step"])

    def save_step(self, event: Step) -> None:
        self._write("step.json", asdict(event))

    def load_step(self, step: int) -> Step | None:
        kept = self._read("step.json")
        return None if kept is None or kept["step"] != step else Step(**kept)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            kept: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(f"{self.folder / name} is damaged ({error}): begin another run in another folder")
        return kept

    def _write(self, name: str, content: dict[str, Any]) -> None:
        partial = self.folder / f"{name}.partial"
        partial.write_text(json.dumps(content), encoding="utf-8")
        replace_file(partial, self.folder / name)


def _locked(path: Path) -> IO[str]:
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise CheckpointError(f"another trainer works in {path.parent}: end it first, or take another folder") from None
    return file
