"""What a fleet remembers, and who may read it."""

from __future__ import annotations

from rose import config
from rose.runtime.service import memory
from rose.runtime.service.memory import FleetMemory
from tests.test_config import MINIMAL


def test_a_fleet_run_goes_on_until_it_is_forgotten(tmp_path):
    fleet = config.parse(f'name = "f"\nstate = "{tmp_path}/state"\n{MINIMAL}', "fleet")
    first = FleetMemory(fleet)
    assert memory.read(first.folder) is None
    began = first.begin()
    began.tokens["other"] = "secret"
    first.write(began)
    assert FleetMemory(fleet).begin() == began
    file = first.folder / memory.FILE
    assert (file.stat().st_mode & 0o777, first.folder.stat().st_mode & 0o777) == (0o600, 0o700)
    first.forget()
    assert memory.read(first.folder) is None


def test_what_another_version_wrote_is_no_fleet_of_this_one(tmp_path):
    (tmp_path / memory.FILE).write_text('{"run_id": "r", "unknown": 1}')
    assert memory.read(tmp_path) is None


def test_each_host_knows_the_fleet_run_of_its_agents(tmp_path):
    assert memory.run_at(tmp_path) is None
    memory.note_run(tmp_path, "r")
    assert memory.run_at(tmp_path) == "r"
    memory.note_run(tmp_path, None)
    assert memory.run_at(tmp_path) is None


def test_a_host_makes_the_token_of_its_engines_once_and_keeps_it_to_its_user(tmp_path):
    folder, other = tmp_path / "state", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    token = memory.engines_token(folder)
    assert len(token) >= 32
    assert memory.engines_token(folder) == token
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert memory.engines_token(other) != token
