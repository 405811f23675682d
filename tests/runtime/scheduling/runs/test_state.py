import fcntl
import os
import threading

import pytest

from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.runs.state import FILE, LOCK, RunFacts, State, StateError


def facts(number, **fields):
    return RunFacts(run_id=f"r{number}", name="n", model="m", opened_us=number, **fields)


def test_a_run_and_its_events_are_kept_together_and_drained_devices_too(tmp_path):
    state = State(tmp_path)
    state.keep(facts(1, tags={"a": "b"}), [{"kind": "run", "action": "started"}])
    with pytest.raises(TypeError):
        state.keep(facts(2), [{"kind": object()}])
    state.drain(["gpu-0"], "new driver")
    state.drain(["gpu-1"], None)
    state.undrain(["gpu-1"])
    state.close()
    again = State(tmp_path)
    assert again.runs() == [facts(1, tags={"a": "b"})]
    ((number, event),) = again.due()
    assert event == {"kind": "run", "action": "started"}
    again.recorded(number)
    assert again.due() == []
    assert again.drained() == {"gpu-0": "new driver"}
    again.close()


def test_what_was_refused_is_known_until_a_write_is_not(tmp_path):
    state = State(tmp_path)
    assert state.check() is None
    state._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StateError):
        state.drain(["gpu-0"], None)
    assert f"{tmp_path / FILE} cannot be read or written" in state.check()
    state._connection.execute("PRAGMA query_only = OFF")
    state.drain(["gpu-0"], None)
    assert state._failure is None
    state.close()


def test_two_processes_never_have_one_state(tmp_path):
    living = State(tmp_path)
    living.keep(facts(1))
    for _ in range(2):
        with pytest.raises(StateError, match=str(tmp_path)):
            Controller(state=tmp_path)
    assert not (tmp_path / "turns.sqlite").exists()
    living.close()
    with (tmp_path / LOCK).open() as dying:
        fcntl.flock(dying, fcntl.LOCK_EX)
        threading.Timer(0.3, fcntl.flock, [dying.fileno(), fcntl.LOCK_UN]).start()
        next_one = State(tmp_path, wait_s=20)
    assert next_one.runs() == [facts(1)]
    next_one.close()
    # Nor does a controller keep a state that it cannot begin with.
    (tmp_path / "turns.sqlite").mkdir()
    with pytest.raises(StateError, match=r"turns\.sqlite"):
        Controller(state=tmp_path)
    State(tmp_path).close()


def test_a_run_that_is_forgotten_is_gone():
    state = State(None)
    for number in range(3):
        state.keep(facts(number))
    state.forget(["r0", "r2"])
    assert [run.run_id for run in state.runs()] == ["r1"]
    state.close()


def test_a_folder_or_file_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"controller\.sqlite"):
        State(tmp_path / "file")
    (tmp_path / FILE).write_bytes(os.urandom(4096))
    with pytest.raises(StateError, match="not a database"):
        State(tmp_path)
