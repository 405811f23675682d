from dataclasses import replace
from pathlib import Path

import pytest

from rose import config
from rose.config import ConfigError
from rose.errors import UserError
from rose.runtime import host_plan, places
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.host_plan import HostPlan
from rose.runtime.service import memory
from rose.runtime.service.host import HostRunner
from rose.runtime.service.memory import FleetMemory, Remembered
from rose.transfer.wire.origin_rules import STRICT, OriginRules
from tests import strangers
from tests.runtime.conftest import until
from tests.runtime.service import fleet_here, own_serving
from tests.runtime.service.test_two_hosts import FLEET
from tests.test_config import MINIMAL


def test_a_fleet_run_goes_on_until_it_is_forgotten(tmp_path):
    fleet = config.parse(f'name = "f"\nstate = "{tmp_path}/state"\n{MINIMAL}', "fleet")
    first = FleetMemory(fleet)
    assert memory.read(first.folder) is None
    began = first.begin()
    began.tokens["other"] = "secret"
    assert len(began.agent_token) == 64
    first.write(began)
    assert FleetMemory(fleet).begin() == began
    file = first.folder / memory.FILE
    assert (file.stat().st_mode & 0o777, first.folder.stat().st_mode & 0o777) == (0o600, 0o700)
    first.forget()
    assert (memory.read(first.folder), first.has_ended()) == (None, True)
    second = first.begin()
    assert (second.run_id == began.run_id, second.tokens, first.has_ended()) == (False, {}, False)
    assert second.agent_token not in ("", began.agent_token)


def test_what_a_newer_version_wrote_is_the_same_fleet_run(tmp_path):
    (tmp_path / memory.FILE).write_text('{"run_id": "r", "unknown": 1}')
    assert memory.read(tmp_path) == Remembered(run_id="r")


@pytest.mark.parametrize("text", ["", '{"run_id": "r"', "[]", "{}", '{"run_id": ""}'])
def test_what_is_damaged_is_not_begun_over(tmp_path, text):
    fleet = config.parse(f'name = "f"\nstate = "{tmp_path}/state"\n{MINIMAL}', "fleet")
    file = tmp_path / "state" / "f" / memory.FILE
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UserError, match=rf"{file}.* is damaged .*restore a copy, or remove it"):
        FleetMemory(fleet).begin()
    assert file.read_text() == text


def test_what_cannot_be_read_is_not_begun_over(tmp_path):
    (tmp_path / memory.FILE).mkdir()
    with pytest.raises(UserError, match=rf"{tmp_path / memory.FILE}: Is a directory; run this as the fleet's user"):
        memory.read(tmp_path)


def test_the_ledger_of_a_kept_run_may_not_be_another(tmp_path):
    kept = Remembered(run_id="r", config_json=fleet_here.fleet(tmp_path).model_dump_json())
    memory.check_fits(kept, fleet_here.fleet(tmp_path))
    with pytest.raises(UserError, match=f"ledger is '{tmp_path}/other'"):
        memory.check_fits(kept, fleet_here.fleet(tmp_path, ledger="other"))


def on_hosts(folder: Path, hosts: list[str], devices: dict[str, str]) -> config.FleetConfig:
    tables = [f'[[host]]\nname = "{name}"\naddress = "10.0.0.{number}"' for number, name in enumerate(hosts, 1)]
    for number, (name, host) in enumerate(devices.items()):
        pool = "rollout" if number == 0 else "serving"
        tables.append(f'[[device]]\nid = "{name}"\npool = "{pool}"\nhost = "{host}"\n{_ON_A_CORE}cores = [{number}]')
    return fleet_here.fleet(folder, "\n".join(tables))


_ON_A_CORE = 'device_class = "cpu-core"\nkv_bytes = 1\n'


def test_a_kept_run_may_get_more_models_and_lose_none(tmp_path):
    more = "[rollout_models.chat]\nmodel = 'chat'\n"
    before, now = fleet_here.fleet(tmp_path), fleet_here.fleet(tmp_path, more)
    kept = Remembered("run", config_json=before.model_dump_json())
    memory.check_fits(kept, now)
    kept.config_json = now.model_dump_json()
    memory.check_fits(kept, fleet_here.fleet(tmp_path, more.replace("chat]", "talk]")))
    with pytest.raises(UserError, match=r"rollout_models\.chat\.model is None, but fleet run run has 'chat'"):
        memory.check_fits(kept, before)


def test_a_device_of_a_run_that_goes_on_stays_on_its_host(tmp_path):
    """Another host does not know its last lease, and would use that name again."""
    before = on_hosts(tmp_path, ["a", "b", "c"], {"x": "a", "y": "b"})
    first = FleetMemory(before)
    began = first.begin()
    began.config_json = before.model_dump_json()
    first.write(began)
    for devices in ({"x": "a", "y": "b", "z": "c"}, {"x": "a", "z": "c"}):
        after = on_hosts(tmp_path, ["a", "b", "c"], devices)
        went_on = FleetMemory(after).begin()
        went_on.config_json = after.model_dump_json()
        first.write(went_on)
    for devices in ({"x": "a", "y": "c", "z": "c"}, {"x": "a", "y": "a", "z": "c"}):
        with pytest.raises(UserError, match=r"device 'y' is on host .*, but fleet run .* has 'b'.*another id"):
            FleetMemory(on_hosts(tmp_path, ["a", "b", "c"], devices)).begin()


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


TWO = config.parse(FLEET, "two")


def test_a_fleet_that_names_no_host_has_one():
    fleet = config.parse(MINIMAL, "one")
    (host,) = places.hosts(fleet)
    assert [device.id for device in places.devices(fleet, host.name)] == ["a", "b"]
    assert places.resource(host, "10.1.2.3") == "node:10.1.2.3"
    plan = HostPlan(config=fleet, host=host.name, run_id="r", controller_url="u")
    assert plan.own.host == ""
    assert places.hosts_by_device(fleet) == {"a": plan.host, "b": plan.host}


def test_each_host_has_its_own_devices_and_a_name_before_its_writers():
    assert [[d.id for d in places.devices(TWO, host.name)] for host in places.hosts(TWO)] == [["s1"], ["s2", "r2"]]
    assert places.hosts_by_device(TWO) == {"s1": "one", "s2": "other", "r2": "other"}
    plan = HostPlan(config=TWO, host="other", run_id="r", controller_url="u")
    assert (plan.own.host, plan.own.hosts) == ("other", [])
    assert plan.memory != HostPlan(config=TWO, host="one", run_id="r", controller_url="u").memory


def test_where_versions_may_be_published_is_as_the_file_says():
    assert places.origin_rules(TWO) == STRICT
    named = config.parse(f'{FLEET}\n[origins]\nfiles = true\nhosts = ["trainer", "169.254.7.0/24"]\n', "two")
    assert places.origin_rules(named) == OriginRules(files=True, hosts=("trainer", "169.254.7.0/24"))
    for host in ("http://trainer", "trainer/store", ""):
        with pytest.raises(ConfigError, match=r"origins\.hosts"):
            config.parse(f'{FLEET}\n[origins]\nhosts = ["{host}"]\n', "two")


def test_a_host_is_known_by_its_resource_before_its_address():
    host = places.hosts(TWO)[1]
    assert places.resource(host, "10.0.0.9") == "node:10.77.0.2"
    assert places.resource(host.model_copy(update={"resource": "rack"}), "10.0.0.9") == "rack"


def test_what_lies_between_a_host_and_an_origin_is_by_where_the_origin_is():
    zoned = config.parse(FLEET.replace('address = "10.77.0.2"', 'address = "10.77.0.2"\nzone = "b"'), "two")
    routes = {
        (host, url): places.route_to(zoned, host, url)
        for host in ("one", "other")
        for url in ("http://10.77.0.1:9", "http://10.77.0.2:9", "http://192.0.2.1:9")
    }
    assert [key for key, route in routes.items() if route == "inter-zone"] == [
        ("one", "http://10.77.0.2:9"),
        ("other", "http://10.77.0.1:9"),
        ("other", "http://192.0.2.1:9"),
    ]
    assert routes["other", "http://10.77.0.2:9"] == "intra-zone"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('name = "other"', 'name = "one"', "values of host.name must differ, got ['one', 'one']"),
        ('address = "10.77.0.2"', 'address = "10.77.0.1"', "values of host.address must differ"),
        ('address = "10.77.0.2"', "", "host 'other' has neither `address` nor `resource`"),
        ('id = "r2"\nhost = "other"', 'id = "r2"', "device 'r2' has no host"),
        ('id = "r2"\nhost = "other"', 'id = "r2"\nhost = "x"', "on host 'x', but the [[host]] tables are"),
        ('host = "0.0.0.0"', 'host = "127.0.0.1"', "gateway.host '127.0.0.1' is not reachable"),
        ("cores = [1]", "cores = [0]", "core 0 belongs to both 's2' and 'r2'"),
    ],
)
def test_hosts_that_do_not_go_together_are_refused(old, new, named):
    assert old in FLEET
    with pytest.raises(ConfigError) as caught:
        config.parse(FLEET.replace(old, new), "fleet.toml")
    assert named in str(caught.value)


@pytest.fixture
def home(monkeypatch):
    with strangers.everybodys_folder() as folder:
        monkeypatch.setattr(host_plan, "_SHARED_MEMORY", folder)
        yield folder


@pytest.fixture
def plan(home, tmp_path):
    plan = own_serving.plan_of(tmp_path)
    traffic = plan.config.traffic.model_copy(update={"trace": str(tmp_path / "trace.csv")})
    return replace(plan, config=plan.config.model_copy(update={"traffic": traffic}))


def begin_and_end(plan):
    runner = HostRunner(plan)
    with own_serving.host_running(runner, leave=True):
        until(lambda: runner.report().doing.startswith("cannot read trace"), 60.0)


def test_a_host_that_starts_again_has_the_folder_and_the_pages_that_it_had(plan):
    begin_and_end(plan)
    memory = plan.memory
    page = ArbiterPage.create(memory / "s" / "page")
    page.close()
    begin_and_end(plan)
    assert plan.memory == memory
    again = ArbiterPage.create(memory / "s" / "page")
    assert again.inode == page.inode
    again.close()
    plan.remove_memory()
    assert not memory.exists()
    begin_and_end(plan)
    assert plan.memory == memory


@strangers.needs_another_user
@pytest.mark.parametrize(
    "trap", ["mkdir -m 0777 {memory} && ln -s {victim} {memory}/host.lock", "ln -s {decoy} {memory}"]
)
def test_one_whose_folder_another_user_made_takes_another_and_empties_no_file(plan, home, tmp_path, trap):
    victim, decoy = tmp_path / "victim", home / "decoy"
    victim.write_text("precious")
    decoy.mkdir(mode=0o700)
    begin_and_end(plan)
    memory = plan.memory
    plan.remove_memory()
    assert strangers.succeeds(trap.format(memory=memory, victim=victim, decoy=decoy))
    begin_and_end(plan)
    assert plan.memory != memory
    assert plan.memory.parent == home
    assert (plan.memory / "host.lock").is_file()
    assert victim.read_text() == "precious"
    assert list(decoy.iterdir()) == []
