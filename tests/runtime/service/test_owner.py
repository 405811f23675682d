import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rose.runtime import serving
from rose.runtime.host_plan import HostPlan
from rose.runtime.service import owner
from rose.runtime.service.host import OwnServing
from tests.runtime.conftest import until
from tests.runtime.service import own_serving
from tests.runtime.service.own_serving import failing, record, taking_port, waiting


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostPlan]:
    monkeypatch.setattr(owner, "_MODULE", own_serving.MODULE)
    plan = own_serving.plan_of(tmp_path)
    yield plan
    owner.stop(plan)
    assert owners(plan) == []
    shutil.rmtree(plan.memory, ignore_errors=True)


def owners(plan: HostPlan) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(plan.state) in (line := process.cmdline()) and own_serving.MODULE in line and "setsid" not in line:
                found.append(process.pid)
    return found


def claims(pid: int) -> int:
    names = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if "@rose-port-" in line]
    opened = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            opened.add(str(descriptor.readlink()))
    return len({f"socket:[{fields[6]}]" for fields in names} & opened)


def kill_engine(plan: HostPlan) -> None:
    (pid,) = owners(plan)
    (engine,) = [child for child in psutil.Process(pid).children() if "serve" in child.cmdline()]
    engine.kill()


def serves(plan: HostPlan) -> Callable[[], bool]:
    return lambda: owner.urls(plan).keys() == {"s"}


def of_next_fleet(plan: HostPlan, device=None, more=(), **serving) -> HostPlan:
    first, *others = plan.config.device
    devices = [first.model_copy(update=device or {}), *more, *others]
    section = plan.config.serving.model_copy(update=serving)
    chat = {"chat": section.model_copy(update={"model": "of chat"})}
    config = plan.config.model_copy(update={"device": devices, "serving": section, "serving_models": chat})
    return replace(plan, config=config, run_id="fleet-2")


def test_it_is_one_however_often_it_is_asked_for_and_goes_on_while_serving_is_the_same(made):
    for _ in range(20):
        assert owner.ensure(made) == {}
    until(serves(made))
    pids, urls = owners(made), owner.urls(made)
    assert owner.ensure(made) == urls
    assert serving.answers(urls["s"])
    assert pids == [record(made)["pid"]]
    assert OwnServing(of_next_fleet(made, device={"device_class": "another"}, ttft_budget_ms=1.0)).look() == urls
    for changed in (
        of_next_fleet(made, device={"id": "u"}),
        of_next_fleet(made, device={"cores": [1]}),
        of_next_fleet(made, model="another"),
        of_next_fleet(made, port=29_999),
        of_next_fleet(made, extra_args=["--another"]),
        of_next_fleet(made, device={"serving_model": "chat"}),
    ):
        assert not owner._serves(changed)
    plan = made.state / "serving.plan.json"
    plan.write_text(json.dumps({"config": {"of": "another version"}, "host": "near", "run_id": "fleet-1"}))
    assert OwnServing(of_next_fleet(made, model="another")).look() == urls
    assert owners(made) == pids


def test_one_whose_engine_waits_for_a_fork_server_that_still_loads_is_ended_too(made):
    asked = waiting(made)
    owner.ensure(made)
    until(asked.read_text)
    owner.stop(made)
    assert owners(made) == []
    assert owner.urls(made) == {}


def test_an_engine_whose_port_was_taken_is_started_once_more_on_another(made):
    wanted = taking_port(made)
    owner.ensure(made)
    until(serves(made))
    port, (url,) = wanted.with_suffix(".taken").read_text(), owner.urls(made).values()
    assert not url.endswith(f":{port}")
    log = (made.logs / "serving-owner.log").read_text()
    assert f"port {port} of serving on s was taken: it is started again at {url}" in log


@pytest.mark.long
def test_an_engine_that_fails_has_one_port_and_comes_back_there_though_nothing_can_be_written(made):
    broken = failing(made)
    owner.ensure(made)
    log = made.logs / "serving-owner.log"
    until(lambda: log.exists() and log.read_text().count("before it was ready") >= 5)
    assert "broken" in owner.failures(made)["s"]
    (pid,) = owners(made)
    assert claims(pid) == 1
    broken.unlink()
    until(serves(made))
    assert claims(pid) == 1
    url, partial = owner.urls(made)["s"], made.state / ".serving.json.partial"

    def refused() -> bool:
        with suppress(FileExistsError):
            partial.mkdir()
        return partial.is_dir()

    until(refused)
    failing(made)
    kill_engine(made)
    tries = log.read_text().count("before it was ready")
    until(lambda: log.read_text().count("before it was ready") >= tries + 2)
    assert owner.failures(made) == {}
    assert "serving.json cannot be written" in log.read_text()
    broken.unlink()
    until(lambda: serving.answers(url))
    partial.rmdir()
    until(serves(made))


def test_one_that_is_started_after_another_was_killed_serves_where_that_did_and_nowhere_else(made):
    owner.ensure(made)
    until(serves(made))
    urls = owner.urls(made)
    os.kill(record(made)["pid"], signal.SIGKILL)
    # The kernel ends the engine with its owner, but not at the same instant.
    until(lambda: not owner.runs(made))
    port = int(urls["s"].rsplit(":", 1)[1])
    until(lambda: not any(each.laddr.port == port for each in psutil.net_connections("tcp") if each.laddr and each.pid))
    with socket.create_server(("127.0.0.1", port)):
        owner.ensure(made)
        until(lambda: "cannot be used" in owner.failures(made).get("s", ""))
        assert owner.urls(made) == {}
    until(serves(made))
    assert owner.urls(made) == urls


@pytest.mark.long
def test_one_that_outlived_its_fleet_serves_as_the_next_one_s_file_says(made):
    owner.ensure(made)
    until(serves(made))
    former, url = owners(made), owner.urls(made)["s"]
    more = made.config.device[0].model_copy(update={"id": "t", "cores": [1]})
    looks = OwnServing(of_next_fleet(made, more=[more]))
    until(lambda: looks.look().keys() == {"s", "t"})
    assert looks.down == {}
    assert owners(made) != former
    assert len(owners(made)) == 1
    assert all(serving.answers(now) for now in owner.urls(made).values())
    assert OwnServing(of_next_fleet(made, device={"serving_url": url})).look() == {}
    assert owners(made) == []
