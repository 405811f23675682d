import asyncio
import contextlib
import functools
import gc
import inspect
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import hypothesis
import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.long_form import LONG, usual

TESTS = Path(__file__).parent

# A busy host makes examples slowly; that says nothing of what is tested.
hypothesis.settings.register_profile(
    "rose", max_examples=usual(12, long=200), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("rose")

#: Tests write to memory where there is room; `--basetemp` chooses another place.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 << 30

if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    tempfile.tempdir = str(MEMORY)

# Threads of torch that wait for one another only take the core from other workers, and from what a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def ledger_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's own key out of all writers, those of subprocesses too."""
    path = tmp_path_factory.mktemp("key") / "ledger.key"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROSE_LEDGER_KEY", str(path))
        yield path


@pytest.fixture(scope="session", autouse=True)
def price_book() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROSE_PRICE_BOOK", "example")
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_made_once() -> Iterator[None]:
    """Typer makes all commands anew for each run; here only once."""
    import typer.testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread_each() -> Iterator[None]:
    """Workers take all cores already: a second thread of DuckDB takes a twentieth of its time for nothing."""
    connect = duckdb.connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            duckdb,
            "connect",
            lambda *where, config=None, **more: connect(*where, config={"threads": 1} | (config or {}), **more),
        )
        yield


#: Streamlit's AppTest puts the page that it draws in its place, and processes that start later would run that page.
MAIN = sys.modules["__main__"]


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """Restore this process's niceness, which `rose train` changes, and its main module."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    sys.modules["__main__"] = MAIN
    if os.getpriority(os.PRIO_PROCESS, 0) != before:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order below: xdist would begin with the files of many tests."""
    config.option.loadscopereorder = False


def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: many tests wait for processes."""
    return len(os.sched_getaffinity(0)) + 1


#: Files of one worker: its engines are forked from one process, which takes 20 s of a core to start.
ENGINES = (
    "runtime/engines/test_sglang.py",
    "runtime/engines/test_forkserver.py",
    "runtime/engines/test_remapped.py",
    "runtime/coserving/attach/test_commands.py",
    "runtime/agent/test_succession.py",
    "runtime/agent/test_two_models.py",
)

#: Files that take long begin first: whoever came to one of them last would have the other workers wait for its end.
#: The demo comes before other real engines and hosts: beside them it takes twice as long, and trains all the while.
LONGEST_FIRST = (
    "runtime/service/test_demo.py",
    "examples/test_live.py",
    "dashboard/test_screens.py",
    "sql/test_queries.py",
    "pricing/spend/test_cost.py",
    "ledger/hosts/test_service.py",
    "dashboard/test_login.py",
    "ledger/reading/test_query.py",
    "dashboard/test_states.py",
    "test_docs.py",
    "install/test_parts.py",
    "pricing/reconcile/test_reconcile.py",
    "pricing/export/test_focus.py",
    "pricing/identities/test_portions.py",
    "runtime/service/test_two_hosts.py",
    *ENGINES,
    "runtime/service/test_one_host.py",
    "pricing/borrowing/test_marginal.py",
    "runtime/service/test_owner.py",
    "ledger/growth/test_archive.py",
    "runtime/service/test_up.py",
    "runtime/agent/test_agent.py",
    "runtime/service/test_host.py",
    "pricing/audit/test_explain.py",
    "ledger/commands/test_commands.py",
    "ledger/growth/test_rolled_ids.py",
    "ledger/upkeep/test_scheduler.py",
    "client/test_ranks.py",
    "examples/test_fsdp2_loop.py",
    "examples/test_plain_loop.py",
    "test_hostile_requests.py",
)


class Scheduling(LoadFileScheduling):
    """Each worker takes one file after another; those of ENGINES count as one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "engines" if file.removeprefix(f"{TESTS.name}/") in ENGINES else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


#: Folders whose tests wait for processes more than they compute.
WAITING = ("runtime/", "client/")


def _by_length(items: list[pytest.Item]) -> Callable[[pytest.Item], float]:
    """The longest files first, then waiting and computing ones, each kind spread evenly."""
    names = list(dict.fromkeys(map(_file_of, items)))
    place = {name: float(number - len(LONGEST_FIRST)) for number, name in enumerate(LONGEST_FIRST)}
    for waiting in (False, True):
        kind = [name for name in names if name not in LONGEST_FIRST and name.startswith(WAITING) is waiting]
        place |= {name: (number + 0.5) / len(kind) for number, name in enumerate(kind)}
    return lambda item: place[_file_of(item)]


def _file_of(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).as_posix()


def pytest_report_header() -> str:
    return f"long form: {'on' if LONG else 'left out; make test-long, or ROSE_TESTS_LONG=1'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files, and leave out the long form, and CUDA tests where there is none."""
    if not LONG:
        left_out = {item for item in items if item.get_closest_marker("long") is not None}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=_by_length(items))
    needs_cuda = [item for item in items if item.get_closest_marker("cuda") is not None]
    if needs_cuda:
        import torch

        if not torch.cuda.is_available():
            for item in needs_cuda:
                item.add_marker(pytest.mark.skip(reason="there is no CUDA device on this host"))


def pytest_collection_finish() -> None:
    """Spare what was imported from every later collection of garbage."""
    gc.collect()
    gc.freeze()


def processes_of_group(group: int) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except (ProcessLookupError, psutil.Error):
            continue
    return processes


@pytest.fixture(scope="session")
def gone():
    """Return what is left of a process group after `seconds`."""

    def wait(group: int, seconds: float = 10.0) -> list[psutil.Process]:
        deadline = time.monotonic() + seconds
        while (left := processes_of_group(group)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    return wait


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory) -> Path:
    from rose.runtime.models.policy_model import Policy, PolicyShape
    from rose.runtime.rollout import vocabulary

    folder = tmp_path_factory.mktemp("policy")
    Policy(PolicyShape()).save(folder)
    vocabulary.save_tokenizer(folder)
    return folder
