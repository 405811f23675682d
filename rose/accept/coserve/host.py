"""The engines of the benchmark, the page they share, and who runs on which core.

The device is one core: of each engine only the scheduler, which does the model's work, runs there. What is the host's
work (HTTP, tokenizers, detokenizers, load generators, this process) runs on the other core, as it would on a GPU host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from rose.accept.coserve.policies import Policy
from rose.config import CoservingConfig, FleetConfig
from rose.errors import UserError
from rose.runtime.coserving.hooks.settings import PluginSettings
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.engines import cpu, models, placement
from rose.runtime.engines.gpu import GATED_ARGUMENTS
from rose.runtime.engines.models import kv_bytes_per_token
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineProcess, EngineSpec
from rose.runtime.policy.kv import KvMemory
from rose.runtime.training.policy_model import Policy as Model
from rose.runtime.training.policy_model import PolicyShape
from rose.terminal import echo

SERVING, ROLLOUT = "serving", "rollout"
CACHE: Path = FleetConfig.model_fields["cache"].default.expanduser()
SERVING_TOKENS, ROLLOUT_TOKENS = 8192, 16384
_PREFILL_CHUNK_TOKENS, _GPU_PREFILL_CHUNK_TOKENS = 512, 2048


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the device. `tokens` are those of each engine's KV pool, `graph_batch_max` the largest decode batch that
    is captured as a graph."""

    index: int
    tokens: int = 65536
    graph_batch_max: int = 64


@dataclass(frozen=True, slots=True)
class Models:
    """Checkpoints' folders; one without weights gets random ones."""

    serving: Path
    rollout: Path

    @classmethod
    def built_in(cls, folder: Path) -> Models:
        """The small model and an untrained policy, which is made in `folder`."""
        rollout = folder / "rollout-model"
        rollout.mkdir()
        Model(PolicyShape()).save(rollout)
        return cls(models.resolve(models.SMOLLM2, CACHE, lambda text: echo(text, err=True)), rollout)


@dataclass(frozen=True, slots=True)
class Cores:
    """The core that is the device, none where a GPU is, and those of the host's work."""

    device: tuple[int, ...]
    host: tuple[int, ...]

    @classmethod
    def available(cls, gpu: Gpu | None) -> Cores:
        """The first core this process may use, and the second; all of them beside a GPU. Raises UserError where there
        is one."""
        cores = sorted(os.sched_getaffinity(0))
        if gpu is not None:
            return cls((), tuple(cores))
        if len(cores) < 2:
            raise UserError(f"this benchmark needs two cores, and may use {cores} alone: give it another")
        return cls((cores[0],), (cores[1],))


class Engine(EngineProcess):
    """An engine in a process group of its own, but in the session of whoever started it.

    Linux gives each session a share of the cores (sched_autogroup): between sessions niceness has no effect, and one
    whose processes run on several cores can be kept off one of them for seconds. `plugin` False is SGLang without ROSE.
    """

    def __init__(self, spec: EngineSpec, *, plugin: bool = True) -> None:
        super().__init__(spec)
        self._plugin = plugin

    def launch(self) -> None:
        """Start the process without waiting for it."""
        environment = {**os.environ, **self._environment()}
        if not self._plugin:
            environment = {name: value for name, value in environment.items() if not name.startswith("ROSE_PLUGIN_")}
            environment["ROSE_PLUGIN_ROLE"] = "off"
        module = "rose.runtime.engines.launch" if self._plugin else "rose.accept.coserve.bare"
        with self.spec.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
            )


@dataclass(slots=True)
class Seat:
    """An engine that was started."""

    engine: EngineProcess


class Host:
    """Everything that was started, by name; made by `opened`."""

    def __init__(self, folder: Path, cores: Cores, gpu: Gpu | None, checkpoints: Models) -> None:
        self.folder = folder
        self.cores = cores
        self.gpu = gpu
        self.models = checkpoints
        if gpu is None:
            self.serving_tokens, self.rollout_tokens = SERVING_TOKENS, ROLLOUT_TOKENS
        else:
            self.serving_tokens = self.rollout_tokens = gpu.tokens
        #: Layers of the rollout model: between two of them a step may yield.
        self.rollout_layers = int(json.loads((checkpoints.rollout / "config.json").read_text())["num_hidden_layers"])
        self._page = ArbiterPage.create(folder / "page")
        self.seats: dict[str, Seat] = {}

    @property
    def memory(self) -> KvMemory:
        """A device on which both pools fit: memory is measured by itself."""
        dtype = cpu.dtype() if self.gpu is None else None
        serving, rollout = (kv_bytes_per_token(model, dtype) for model in (self.models.serving, self.models.rollout))
        return KvMemory(
            device_bytes=2 * (self.serving_tokens * serving + self.rollout_tokens * rollout),
            serving_bytes_per_token=serving,
            rollout_bytes_per_token=rollout,
            headroom=CoservingConfig().headroom,
            high_watermark=CoservingConfig().high_watermark,
        )

    @property
    def page(self) -> ArbiterPage:
        """The page of the device."""
        return self._page

    def start(self, names: list[str]) -> None:
        """Start engines side by side and keep each to its cores. Names: serving, rollout, bare."""
        for name in names:
            self.launch(name)
            if self.gpu is not None:  # Each takes its share of what memory is free when it starts.
                self.seats[name].engine.wait_ready()
        for name in names:
            self.wait_ready(name)

    def launch(self, name: str) -> None:
        """Start an engine without waiting for it. It lives as long as the calling thread."""
        self.seats[name] = Seat(self._engine(name, self._page.path))
        self.seats[name].engine.launch()

    def wait_ready(self, name: str) -> None:
        """Wait until an engine that was launched answers, and keep it to its cores."""
        self.seats[name].engine.wait_ready()
        self.place(name, nice=0, scheduling=os.SCHED_OTHER)

    def place(self, name: str, nice: int, scheduling: int) -> None:
        """Keep an engine's scheduler to the device and all else of it to the host's core, as a lent engine is kept.

        Raises PermissionError where niceness may not be lowered again: run it as root, or one policy a run.
        """
        if self.gpu is not None:
            return
        placement.place(
            self.processes(name),
            cores=self.cores.device,
            host_cores=self.cores.host,
            nice=nice,
            idle_class=scheduling == os.SCHED_IDLE,
        )

    def adopt(self, policy: Policy) -> None:
        """Run the rollout engine of a policy as that policy says."""
        if policy.lends:
            self.place(ROLLOUT, policy.nice, policy.scheduling)

    def processes(self, name: str) -> list[psutil.Process]:
        """The live processes of an engine."""
        pid = self.seats[name].engine.pid
        assert pid is not None
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]

    def stop(self, names: list[str]) -> None:
        """Stop engines; those that do not run are passed over."""
        for name in names:
            if name in self.seats:
                self.seats.pop(name).engine.stop()

    def _engine(self, name: str, page: Path) -> EngineProcess:
        serves = name in ("serving", "bare")
        model = self.models.serving if serves else self.models.rollout
        staging = self.staging(name)
        staging.mkdir(exist_ok=True)
        spec = EngineSpec(
            engine_id=name,
            model=str(model),
            model_name=models.SMOLLM2 if serves else "untrained policy",
            port=free_port(),
            max_total_tokens=self.serving_tokens if serves else self.rollout_tokens,
            plugin=PluginSettings("serving" if serves else "rollout", page, staging, gated=not serves),
            log=self.folder / f"{name}.log",
            cores=self.cores.device,
            token_ids_only=not serves,
            gpu=None if self.gpu is None else self.gpu.index,
            extra_args=self._arguments(model, serves),
        )
        return Engine(spec, plugin=name != "bare")

    def staging(self, name: str) -> Path:
        """Where an engine is handed new weights."""
        return self.folder / f"staging-{name}"

    def _arguments(self, model: Path, serves: bool) -> tuple[str, ...]:
        load = () if any(model.glob("*.safetensors")) else ("--load-format=dummy",)
        if self.gpu is None:
            return load if serves else (*load, f"--chunked-prefill-size={_PREFILL_CHUNK_TOKENS}")
        chunk = f"--chunked-prefill-size={_GPU_PREFILL_CHUNK_TOKENS}"
        graphs = f"--cuda-graph-max-bs-decode={self.gpu.graph_batch_max}"
        return (*load, chunk, graphs, *(() if serves else GATED_ARGUMENTS))


@contextmanager
def opened(folder: Path, cores: Cores, gpu: Gpu | None = None, checkpoints: Models | None = None) -> Iterator[Host]:
    """A host whose engines are all stopped at the end; they run the built-in models if none are named. This process is
    kept to the host's core meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores.host)
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, before)
        host = Host(folder, cores, gpu, checkpoints or Models.built_in(folder))
        # Asked at the end for what runs then: engines are started and stopped in between.
        stack.callback(lambda: host.stop(list(host.seats)))
        yield host
