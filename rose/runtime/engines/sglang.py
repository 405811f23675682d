"""Starts an SGLang server, waits until it answers, and leaves no process behind."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rose.errors import UserError
from rose.http_calls import ask_json
from rose.runtime.coserving.questions import unrecorded_id
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines import adoption, door, leftovers, ports
from rose.runtime.engines.adoption import DetachedProcess, EngineRecord, start_detached
from rose.runtime.engines.door import LOOPBACK, Door, addresses
from rose.runtime.engines.forkserver import ForkError, fork_engine
from rose.runtime.platform import placement
from rose.runtime.platform.gpu import mps

START_TIMEOUT_S = 1200.0
_STOP_GRACE_S = 10.0
_LOG_TAIL_LINES = 15


class EngineError(UserError):
    """An engine failed to start, died or answered wrongly. The message says what to do."""

    exit_code = 1


class AddressInUseError(EngineError):
    """Another server uses a port that the engine needs."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How to start an engine on `gpu` or `cores`. HTTP and text processing run on `host_cores` (default: `cores`). With
    `orphan_s`, the engine outlives its starter, and ends after this many seconds without an agent."""

    engine_id: str
    model: str
    model_name: str
    port: int
    max_total_tokens: int
    plugin: PluginSettings
    log: Path
    gpu: int | None = None
    cores: Sequence[int] = ()
    nice: int = 0
    token_ids_only: bool = False
    extra_args: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    host_cores: Sequence[int] = ()
    start_cores: Sequence[int] = ()
    idle_class: bool = False
    fork_server: Path | None = None
    any_port: bool = False
    orphan_s: float | None = None
    door: Door | None = None
    overlap: bool = False
    capacity: int = 1  # Requests at once.
    kv_bytes_per_token: int = 0

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def outer_url(self) -> str:
        if self.door is None:
            return self.url
        address = f"[{self.door.address}]" if ":" in self.door.address else self.door.address
        return f"http://{address}:{self.port}"

    def elsewhere(self) -> EngineSpec | None:
        return dataclasses.replace(self, port=ports.free_port(*addresses(self.door))) if self.any_port else None


def require_free_port(port: int, what: str, host: str = "127.0.0.1") -> None:
    try:
        ports.listen_once(host, port)
    except OSError as error:
        cannot = f"port {port} for {what} cannot be used ({error.strerror}): "
        if error.errno == errno.EADDRINUSE:
            way_out = "free the port, name another, or leave `port` out to use any free port"
            raise AddressInUseError(cannot + way_out) from None
        way_out = f"{host} must be an address of this host, and {port} a port that this user may use"
        raise EngineError(cannot + way_out) from None


def has_embedded_server() -> bool:
    spec = importlib.util.find_spec("sglang")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return any(list(Path(folder).glob("srt/rust_extensions/_server*.so")) for folder in folders)


class EngineProcess:
    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.url = spec.url
        self._process: subprocess.Popen[bytes] | DetachedProcess | None = None
        self._killed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the engine. Without `orphan_s`, the engine ends when this thread ends, or, if a fork server started the
        engine, when this process ends. With `orphan_s`, the engine outlives both."""
        spec = self.spec
        for address in addresses(spec.door):
            require_free_port(spec.port, f"engine {spec.engine_id}", address)
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **self._environment()}
        leftovers.shift_logs(spec.log)
        leftovers.remove_unused()
        # Append, so that a truncated log begins at its start.
        with spec.log.open("ab") as log:
            if spec.fork_server is not None:
                try:
                    self._process = fork_engine(
                        spec.fork_server,
                        self._arguments(),
                        environment,
                        log,
                        cores=self._start_cores,
                        nice=spec.nice,
                        # If a session does not have serving's cores, all of it gives way.
                        own_session=spec.idle_class and not spec.plugin.gated,
                    )
                    return
                except ForkError as error:
                    log.write(f"{error}: this engine starts as a fresh process\n".encode())
                    log.flush()
            program = ["-m", "rose.runtime.engines.launch", *self._arguments()]
            prefix = placement.start_prefix(self._start_cores, spec.nice)
            if spec.orphan_s is not None:
                self._process = DetachedProcess.open(start_detached(program, environment, log, prefix))
                return
            self._process = subprocess.Popen(
                [*prefix, sys.executable, *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def adopt(self, record: EngineRecord) -> bool:
        self._process = record.process()
        return self._process is not None

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait for the first answer. Raises AddressInUseError, or EngineError with the end of the log."""
        deadline = time.monotonic() + timeout_s
        body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
        while time.monotonic() < deadline:
            if not self.alive:
                kind = AddressInUseError if "address already in use" in self._log().lower() else EngineError
                raise kind(self._diagnosis("ended before it was ready"))
            try:
                self.post("/generate", {"rid": unrecorded_id(), **body}, timeout_s=60)
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.25)
        self.stop()
        raise EngineError(self._diagnosis(f"did not answer within {timeout_s:.0f} s"))

    def settle(self) -> None:
        spec = self.spec
        placement.place(
            self.processes(),
            cores=spec.cores,
            host_cores=spec.host_cores or spec.cores,
            nice=spec.nice,
            idle_class=spec.idle_class,
        )

    def processes(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        leader = psutil.Process(self._process.pid)
        return [leader, *leader.children(recursive=True)]

    def post(self, path: str, body: dict[str, object], timeout_s: float = 30.0) -> Any:
        return ask_json(self.url + path, body, None, timeout_s)

    def stop(self) -> None:
        """End the engine and its children with SIGTERM, then SIGKILL. Safe to call twice."""
        if self._process is None:
            return
        # Signal only the leader: if a child ends first, SGLang believes that it crashed.
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_GRACE_S)
        self.kill()

    def kill(self) -> None:
        """Kill the process group, and wait for its leader. Safe to call twice."""
        if self._process is None or self._killed:
            return
        if self.spec.gpu is not None:
            mps.end_clients(self._process.pid)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._killed = True
        if self.spec.orphan_s is not None and self.spec.plugin.page is not None:
            adoption.record_path(self.spec.plugin.page).unlink(missing_ok=True)

    def log_tail(self) -> str:
        return "\n".join(self._log().splitlines()[-_LOG_TAIL_LINES:])

    def _log(self) -> str:
        try:
            return self.spec.log.read_text(errors="replace")
        except OSError:
            return "(no log)"

    def _diagnosis(self, what: str) -> str:
        return (
            f"engine {self.spec.engine_id} ({self.spec.model}) {what}. The end of {self.spec.log}:\n{self.log_tail()}"
        )

    def _arguments(self) -> list[str]:
        from rose.runtime.platform import cpu, gpu

        spec = self.spec
        arguments = [
            f"--model-path={spec.model}",
            # This name is for the ledger, whose readers do not know this machine's folders.
            f"--served-model-name={spec.model_name}",
            f"--host={LOOPBACK}",
            f"--port={spec.port}",
            f"--max-total-tokens={spec.max_total_tokens}",
            "--skip-server-warmup",
            "--log-level=info",
        ]
        if spec.gpu is None:
            arguments += [*cpu.ARGUMENTS, f"--dtype={cpu.dtype()}"]
            if not spec.overlap:
                arguments.append("--disable-overlap-schedule")
        else:
            arguments += [f"--base-gpu-id={spec.gpu}", *gpu.arguments()]
        if spec.token_ids_only:
            arguments.append("--skip-tokenizer-init")
        return arguments + list(spec.extra_args)

    @property
    def _start_cores(self) -> Sequence[int]:
        return self.spec.start_cores or (range(os.cpu_count() or 1) if self.spec.gpu is None else ())

    def _environment(self) -> dict[str, str]:
        from rose.runtime.platform import cpu, gpu

        spec = self.spec
        environment = {
            "ROSE_PARENT_PID": str(os.getpid()),
            "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1" if Path(spec.model).is_dir() else "0"),
            **spec.plugin.to_environment(),
            **adoption.environment(spec),
            **door.environment(spec.door, spec.port),
        }
        ranks = any(argument.startswith(("--tp-size", "--tensor-parallel-size")) for argument in spec.extra_args)
        if spec.plugin.role == "rollout" and not ranks and has_embedded_server():
            environment |= {"SGLANG_RUST_SERVER": "1", "RUST_LOG": "warn"}
        if spec.cores:
            environment["OMP_NUM_THREADS"] = str(len(spec.cores))
        if spec.gpu is None:
            environment |= {"ROSE_ENGINE_ON_CPU": "1", **cpu.ENVIRONMENT, **gpu.environment_on_cores()}
        else:
            environment |= gpu.environment()
        return {**environment, **spec.environment}
