"""Two engines that share a device and its arbiter page. Without a GPU, the device is the core of both schedulers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rose.accept.coserve.keeper import Policy
from rose.config import CoservingConfig
from rose.errors import UserError
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineProcess, EngineSpec
from rose.runtime.models import models
from rose.runtime.models.models import kv_bytes_per_token
from rose.runtime.platform import cpu
from rose.runtime.platform.gpu import GATED_ARGUMENTS
from rose.runtime.policy.kv import KvMemory

SERVING, ROLLOUT = "serving", "rollout"
_SERVING_TOKENS, _ROLLOUT_TOKENS = 8192, 16384
_PREFILL_CHUNK_TOKENS, _GPU_PREFILL_CHUNK_TOKENS = 512, 2048


@dataclass(frozen=True, slots=True)
class Gpu:
    """The engines' GPU. Each KV pool has room for `tokens`. CUDA graphs cover batches up to `graph_batch_max`."""

    index: int
    tokens: int = 65536
    graph_batch_max: int = 64


@dataclass(frozen=True, slots=True)
class Cores:
    """A host's cores. `device`: the core that both engines share (empty: they share a GPU). `host`: for other work."""

    device: tuple[int, ...]
    host: tuple[int, ...]

    @classmethod
    def available(cls, gpu: Gpu | None) -> Cores:
        cores = sorted(os.sched_getaffinity(0))
        if gpu is not None:
            return cls((), tuple(cores))
        if len(cores) < 2:
            raise UserError(f"two CPU cores are needed, and this process may use only {cores}: give it one more")
        return cls((cores[0],), (cores[1],))


class Engine(EngineProcess):
    """An engine in its parent's process session, because Linux ignores niceness between sessions (sched_autogroup)."""

    def launch(self) -> None:
        with self.spec.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rose.runtime.engines.launch", *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment()},
                process_group=0,
            )


class Host:
    def __init__(self, folder: Path, cores: Cores, gpu: Gpu | None, checkpoints: Mapping[str, Path]) -> None:
        self.folder = folder
        self.cores = cores
        self.gpu = gpu
        self.models = checkpoints  #: By engine.
        self.serving_tokens, self.rollout_tokens = _SERVING_TOKENS, _ROLLOUT_TOKENS
        if gpu is not None:
            self.serving_tokens = self.rollout_tokens = gpu.tokens
        self.page = ArbiterPage.create(folder / "page")
        self.engines: dict[str, EngineProcess] = {}

    @property
    def memory(self) -> KvMemory:
        dtype = cpu.dtype() if self.gpu is None else None
        serving, rollout = (kv_bytes_per_token(self.models[name], dtype) for name in (SERVING, ROLLOUT))
        return KvMemory(
            device_bytes=2 * (self.serving_tokens * serving + self.rollout_tokens * rollout),
            serving_bytes_per_token=serving,
            rollout_bytes_per_token=rollout,
            headroom=CoservingConfig().headroom,
            high_watermark=CoservingConfig().high_watermark,
        )

    def launch(self, name: str) -> None:
        serves = name == SERVING
        model = self.models[name]
        staging = self.staging(name)
        staging.mkdir(exist_ok=True)
        spec = EngineSpec(
            engine_id=name,
            model=str(model),
            model_name=models.SMOLLM2 if serves else "untrained policy",
            port=free_port(),
            max_total_tokens=self.serving_tokens if serves else self.rollout_tokens,
            plugin=PluginSettings(
                "serving" if serves else "rollout", self.page.path, staging, not serves, self.cores.host
            ),
            log=self.folder / f"{name}.log",
            cores=self.cores.device,
            host_cores=self.cores.host,
            token_ids_only=not serves,
            overlap=serves,  # As on a GPU.
            gpu=None if self.gpu is None else self.gpu.index,
            extra_args=self._arguments(model, serves),
        )
        self.engines[name] = Engine(spec)
        self.engines[name].launch()

    def wait_ready(self, name: str) -> None:
        self.engines[name].wait_ready()
        self._place(name, nice=0, idle_class=False)

    def _place(self, name: str, nice: int, idle_class: bool) -> None:
        if self.gpu is None:
            engine = self.engines[name]
            engine.spec = replace(engine.spec, nice=nice, idle_class=idle_class)
            engine.settle()

    def adopt(self, policy: Policy) -> None:
        if policy.lends:
            self._place(ROLLOUT, policy.nice, policy.idle_class)

    def stop(self, names: list[str]) -> None:
        for name in names:
            if name in self.engines:
                self.engines.pop(name).stop()

    def staging(self, name: str) -> Path:
        return self.folder / f"staging-{name}"

    def _arguments(self, model: Path, serves: bool) -> tuple[str, ...]:
        load = () if any(model.glob("*.safetensors")) else ("--load-format=dummy",)
        if self.gpu is None:
            return load if serves else (*load, f"--chunked-prefill-size={_PREFILL_CHUNK_TOKENS}")
        chunk = f"--chunked-prefill-size={_GPU_PREFILL_CHUNK_TOKENS}"
        graphs = f"--cuda-graph-max-bs-decode={self.gpu.graph_batch_max}"
        return (*load, chunk, graphs, *(() if serves else GATED_ARGUMENTS))


@contextmanager
def opened(folder: Path, cores: Cores, gpu: Gpu | None, checkpoints: Mapping[str, Path]) -> Iterator[Host]:
    """Yield a host of engines. During the block, this process uses only the host's cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores.host)
    try:
        host = Host(folder, cores, gpu, checkpoints)
        try:
            yield host
        finally:
            host.stop(list(host.engines))
    finally:
        os.sched_setaffinity(0, before)
