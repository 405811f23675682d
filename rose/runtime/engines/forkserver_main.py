"""Loads SGLang once, then forks engines. A fork breaks threads, OpenMP and CUDA, so this process uses none of them."""

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import setproctitle

from rose.runtime.engines import adoption, launch
from rose.runtime.engines.forkserver import PACKET_BYTES_MAX, installed_code
from rose.runtime.platform import placement

#: Prefixes of variables that SGLang and its libraries read while they load.
_READ_AT_LOAD = (
    *("SGLANG_", "ROSE_ENGINE_ON_CPU", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "LD_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
)
#: Such variables that are read later, are set again in `_apply`, or that torch sets itself when it compiles.
_READ_LATER = {
    *("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "HF_TOKEN", "SGLANG_CPU_OMP_THREADS_BIND", "SGLANG_RUST_SERVER"),
    "TORCHINDUCTOR_CACHE_DIR",
}
LOADED = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
    "rose.runtime.coserving.plugin",
)
_REQUEST_TIMEOUT_S = 5.0


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return the variables that differ in `ours` and `theirs` and would make SGLang load differently."""
    return sorted(
        name
        for name in ours.keys() | theirs.keys()
        if name.startswith(_READ_AT_LOAD) and name not in _READ_LATER and ours.get(name) != theirs.get(name)
    )


def cuda_in_use() -> bool:
    """Return whether this process has opened CUDA, which does not survive a fork."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith("/dev/nvidia"):
                return True
    return False


def load() -> None:
    for name in LOADED:
        importlib.import_module(name)


class Server:
    def __init__(self, listening: socket.socket, creator: int) -> None:
        self._environment = dict(os.environ)
        self._code = installed_code()
        load()
        self._set_by_load = {k: v for k, v in os.environ.items() if self._environment.get(k) != v}
        gc.collect()  # A garbage collection in an engine would only copy pages of loaded objects.
        gc.freeze()
        self._listening = listening
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        self._selector.register(creator, selectors.EVENT_READ, None)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data()

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        connection.settimeout(_REQUEST_TIMEOUT_S)
        descriptors: list[int] = []
        try:
            packet, descriptors, _, _ = socket.recv_fds(connection, PACKET_BYTES_MAX, 2)
            self._answer(connection, json.loads(packet), descriptors)
        except (OSError, ValueError):
            connection.close()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer(self, connection: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
        reason = self._refusal(request)
        if reason is not None:
            connection.send(json.dumps({"refused": reason}).encode())
            connection.close()
            return
        requester, log = descriptors
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            connection.close()
            self._become(request, requester, log)
        # The child does this too, so that neither waits for the other.
        placement.place_start(pid, request["cores"], request["nice"])
        if not request.get("own_session"):
            os.setpgid(pid, pid)
        # A pid may be reused. The handle always means this process.
        pidfd = os.pidfd_open(pid)
        try:
            socket.send_fds(connection, [json.dumps({"pid": pid}).encode()], [pidfd])
        except OSError:  # The requester is gone.
            os.killpg(pid, signal.SIGKILL)
        finally:
            os.close(pidfd)
            connection.close()

    def _refusal(self, request: dict[str, Any]) -> str | None:
        other = [name for name, code in self._code.items() if request.get("code", {}).get(name) != code]
        if other:
            return f"another {' and '.join(other)} is installed since it was started"
        names = differing(self._environment, request["environment"])
        if names:
            return f"SGLang is loaded under other values of {', '.join(names)}"
        if cuda_in_use():
            return "CUDA is in use in it"
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            return "more than one thread runs in it"
        return None

    def _become(self, request: dict[str, Any], requester: int, log: int) -> None:
        code = 1
        try:
            placement.place_start(0, request["cores"], request["nice"])
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if request.get("own_session"):
                os.setsid()
            else:
                os.setpgid(0, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            if not adoption.is_detached(request["environment"]):
                end_with(requester)
            _apply({**request["environment"], **self._set_by_load})
            _fork_children()
            launch.serve(request["engine_arguments"])
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def end_with(requester: int) -> None:
    def watch() -> None:
        watching = selectors.DefaultSelector()
        watching.register(requester, selectors.EVENT_READ)
        watching.select()
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="rose-requester", daemon=True).start()


def _apply(environment: Mapping[str, str]) -> None:
    import torch

    os.environ.clear()
    os.environ.update(environment)
    setproctitle.setproctitle("rose.runtime.engines.launch forked")
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    offline = environment.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")
    for module in list(sys.modules.values()):
        if "HF_HUB_OFFLINE" in getattr(module, "__dict__", {}):
            module.HF_HUB_OFFLINE = offline  # type: ignore[attr-defined]


def _fork_children() -> None:
    """Make SGLang start its children by fork, not by spawn, unless CUDA is in use."""
    import multiprocessing

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def choose(_result: object, *_args: object) -> None:
        if not cuda_in_use():
            multiprocessing.set_start_method("fork", force=True)

    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", choose, HookType.AFTER)


def main() -> None:
    path, listening, creator = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # The first call must come before the environment changes.
    setproctitle.setproctitle(f"rose.runtime.engines.forkserver {path}")
    # Requesters have handles of their engines; this process waits for none.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        Server(socket.socket(fileno=listening), creator).run()
    finally:
        Path(path).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
