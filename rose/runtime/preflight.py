"""Checks a fleet before anything is started. A failed check leaves no half-written files."""

import importlib.util
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psutil

from rose.config import ConfigError, DeviceConfig, FleetConfig
from rose.errors import UserError
from rose.ledger.files.layout import LedgerError
from rose.runtime import memory_plan, places, serving
from rose.runtime.engines.sglang import EngineError, require_free_port
from rose.runtime.errors import FolderError
from rose.runtime.memory_plan import DeviceMemoryError, MemoryPlan
from rose.runtime.models import models
from rose.runtime.platform import gpu

ENGINE_BYTES = 3 << 30  # Measured resident memory of one engine's processes on CPU cores, rounded up.
REST_BYTES = 3 << 30  # Measured resident memory of everything else in a run, rounded up.

_RUNTIME_PACKAGES = ("torch", "ray", "sglang", "transformers", "aiohttp", "gymnasium")


class PreflightError(UserError):
    """The fleet cannot start on this host. The message says why, and what to do."""


@contextmanager
def _refused(*kinds: type[Exception], before: str = "") -> Iterator[None]:
    try:
        yield
    except kinds as error:
        raise PreflightError(f"{before}{error}") from None


def check(config: FleetConfig) -> None:
    """Check a fleet that has no other host than this host. Raises PreflightError."""
    check_archive(config)
    check_host(config)
    if config.gateway.port is not None:
        with _refused(EngineError):
            require_free_port(config.gateway.port, "gateway.port", config.gateway.host)


def check_host(config: FleetConfig) -> None:
    _check_trace(config)
    _check_packages()
    _check_activation(config)
    _check_devices(config)
    _check_kernels(config)
    check_serving(config.device)
    _check_models(config)
    _check_folders(config)
    _check_memory(config)
    for number, device in enumerate(device for device in config.device if device.pool == "serving"):
        if device.serving_url is None and (port := config.serving_on(device).port) is not None:
            with _refused(EngineError):
                require_free_port(port + number, f"device {device.id!r}", "127.0.0.1")


def check_gpus(memory: MemoryPlan) -> dict[str, int]:
    gpus = [(device, device.gpu) for device in memory.config.device if device.gpu is not None]
    if not gpus:
        return {}
    with _refused(DeviceMemoryError, ValueError):
        free = memory_plan.free_memory([index for _, index in gpus])
        for device, index in gpus:
            memory.check(device, free[index])
    return {device.id: free[index] for device, index in gpus}


def notice(config: FleetConfig) -> str | None:
    if not _stand_ins(config):
        return None
    return (
        "STAND-IN KERNELS: SGLang's kernels are not installed, and engines on GPUs run plain torch and Triton instead "
        f"({gpu.NATIVE_KERNELS}=1). This shows that the mechanisms work, but not how fast SGLang is. Not for "
        "production"
    )


def _check_packages() -> None:
    missing = [name for name in _RUNTIME_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise PreflightError(
            f"not installed: {', '.join(missing)}. On a host without a GPU, run `make demo` in a checkout, which "
            "sets up an environment. On a GPU host, run `pip install '.[gpu]'`."
        )


def _check_devices(config: FleetConfig) -> None:
    available = os.sched_getaffinity(0)
    for device in config.device:
        if device.gpu is not None:
            require_gpu(device.gpu, f"device {device.id!r}", "Change `gpu`, or give `cores`.")
            continue
        missing = sorted(set(device.cores) - available)
        if missing:
            raise PreflightError(f"device {device.id!r}: cores {missing} are not available: use {sorted(available)}")


def require_gpu(index: int, what: str, way_out: str) -> None:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not 0 <= index < count:
        raise PreflightError(f"{what}: GPU {index} is not there; this host has {count}. {way_out}")
    if not gpu.has_kernels() and not gpu.native_kernels():
        raise PreflightError(
            f"{what}: SGLang's kernels for GPUs are not installed: `pip install sglang-kernel`. For a trial without "
            f"them, set {gpu.NATIVE_KERNELS}=1"
        )


def _stand_ins(config: FleetConfig) -> bool:
    return gpu.native_kernels() and any(device.gpu is not None for device in config.device)


def _check_kernels(config: FleetConfig) -> None:
    if not _stand_ins(config):
        return
    attached = [device.id for device in config.device if device.serving_url is not None]
    if attached or config.traffic.trace == "none":
        where = f"device {attached[0]!r} has a serving_url" if attached else "traffic.trace is 'none'"
        raise PreflightError(
            f"{gpu.NATIVE_KERNELS}=1 is set, and {where}: engines without SGLang's kernels are not for production. "
            "Run `pip install sglang-kernel`, or replay traffic on serving engines of ROSE's own"
        )


def _check_activation(config: FleetConfig) -> None:
    coserving = config.coserving
    lent = [device.id for device in config.device if device.pool == "serving" and device.gpu is not None]
    if not lent or not coserving.enabled or coserving.activation != "leased":
        return
    if importlib.util.find_spec("torch_memory_saver") is None:
        raise PreflightError(
            f"device {lent[0]!r}: coserving.activation is 'leased', and the package torch-memory-saver is not "
            "installed: `pip install torch-memory-saver`, or set coserving.activation to 'resident'"
        )


def check_serving(devices: Iterable[DeviceConfig]) -> None:
    """Check owners' servers. Raises PreflightError for the first server that does not answer."""
    for device in devices:
        if device.serving_url is not None and not serving.answers(device.serving_url):
            raise PreflightError(
                f"device {device.id!r}: no SGLang server answers at serving_url {device.serving_url}: start it, or "
                "leave `serving_url` out to have one started"
            )


def _check_models(config: FleetConfig) -> None:
    if not config.device:
        return
    named = {device.serving_table: config.serving_on(device).model for device in config.device}
    for table, model in {**named, **{table: one.model for table, one in config.rollouts.items()}}.items():
        with _refused(models.ModelError, before=f"{table}.model: "):
            models.local(model)


def _check_memory(config: FleetConfig) -> None:
    lending = config.coserving.enabled
    engines = sum(1 if device.pool == "rollout" else (device.serving_url is None) + lending for device in config.device)
    needed = engines * ENGINE_BYTES + REST_BYTES
    available = psutil.virtual_memory().available
    if available < needed:
        raise PreflightError(
            f"{engines} engines need about {needed / 2**30:.0f} GiB of memory, and {available / 2**30:.1f} GiB are "
            "available: free some, or configure fewer devices"
        )


def _check_trace(config: FleetConfig) -> None:
    from rose.runtime.traffic import trace

    if not any(device.pool == "serving" for device in config.device):
        return
    with _refused(trace.TraceError, ConfigError):
        trace.open_trace(config.traffic)


def check_archive(config: FleetConfig) -> None:
    """Check `archive.to` as far as this host can. Raises PreflightError."""
    from rose.ledger.growth import archive

    if config.archive.to is not None:
        with _refused(LedgerError, before=f"archive.to {config.archive.to!r}: "):
            archive.outside(archive.Store(config.archive.to), places.ledger(config))


def _check_folders(config: FleetConfig) -> None:
    with _refused(FolderError):
        places.make_ledger(config)
        places.make_state(places.state_folder(config))
    cache = config.cache.expanduser()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreflightError(f"cache {cache} cannot be made ({error.strerror}): set `cache` to a folder you own")
