"""Publishes weights from the Trainer of Hugging Face: `Trainer(..., callbacks=[PublishCallback(run)])`."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerCallback

from rose.client.address import ClientError
from rose.client.run import Run


class PublishCallback(TrainerCallback):  # type: ignore[misc]
    """Publishes the model to `run` each time `every` optimizer steps are done, and after training. If the run has no
    version, also publishes at the start. LoRA adapters are merged. Errors of `Run.publish` end the training."""

    def __init__(self, run: Run, every: int = 1) -> None:
        if every < 1:
            raise ClientError(f"every is {every}, expected 1 or more steps")
        self._run, self._every = run, every

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        if self._run.version is None:
            self._publish(model)

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        if state.global_step % self._every == 0:
            self._publish(model)

    def on_train_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        if state.global_step % self._every:
            self._publish(model)

    def _publish(self, model: Any) -> None:
        if not hasattr(model, "peft_config"):
            self._run.publish(model.state_dict())
            return
        with TemporaryDirectory(prefix="rose-adapter-") as folder:
            model.save_pretrained(folder)
            self._run.publish(Path(folder))
