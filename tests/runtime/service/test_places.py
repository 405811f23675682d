"""Which devices a host has, and by what Ray node it is known."""

from __future__ import annotations

import pytest

from rose import config
from rose.config import ConfigError
from rose.runtime.service import places
from rose.runtime.service.places import HostPlan
from rose.runtime.transfer.wire.origin_rules import STRICT, OriginRules
from tests.runtime.service.test_two_hosts import FLEET
from tests.test_config import MINIMAL

TWO = config.parse(FLEET, "two")


def test_a_fleet_that_names_no_host_has_one():
    fleet = config.parse(MINIMAL, "one")
    (host,) = places.hosts(fleet)
    assert [device.id for device in places.devices(fleet, host.name)] == ["a", "b"]
    assert places.resource(host, "10.1.2.3") == "node:10.1.2.3"
    plan = HostPlan(config=fleet, host=host.name, run_id="r", controller_url="u")
    assert plan.own.host == ""
    # What its agents say to the controller is the plan's name of it.
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
        ('name = "other"', 'name = "one"', "no two hosts may have one name, got ['one', 'one']"),
        ('address = "10.77.0.2"', 'address = "10.77.0.1"', "no two hosts may have one address"),
        ('address = "10.77.0.2"', "", "host 'other' has neither `address` nor `resource`"),
        ('id = "r2"\nhost = "other"', 'id = "r2"', "device 'r2' names no host, and there are 2"),
        ('id = "r2"\nhost = "other"', 'id = "r2"\nhost = "x"', "on host 'x', and there is no [[host]] of that name"),
        ('host = "0.0.0.0"', 'host = "127.0.0.1"', "gateway.host is '127.0.0.1', which the other hosts do not reach"),
        ("cores = [1]", "cores = [0]", "core 0 belongs to both 's2' and 'r2'"),
        ("port = 30100", "port = 30000", "serving_url of device 's1' and gateway.port are both port 30000"),
    ],
)
def test_hosts_that_do_not_go_together_are_refused(old, new, named):
    assert old in FLEET
    with pytest.raises(ConfigError) as caught:
        config.parse(FLEET.replace(old, new), "fleet.toml")
    assert named in str(caught.value)


def test_a_device_on_a_host_without_a_table_is_refused():
    with pytest.raises(ConfigError, match=r"device 'a' is on host 'x', and there is no \[\[host\]\] table"):
        config.parse(MINIMAL.replace('id = "a"', 'id = "a"\nhost = "x"'), "fleet.toml")
