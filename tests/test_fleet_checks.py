"""Fields of a fleet file that are right one by one, and not together; what one device has is in `test_config`."""

from __future__ import annotations

import pytest

from rose import config
from rose.config import ConfigError
from tests.test_config import MINIMAL

_SECOND = """
[[device]]
id = "c"
pool = "serving"
device_class = "cpu-core"
cores = [2]
kv_bytes = 1000
"""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[serving]\nport = 30100\n[gateway]\nport = 30100", "serving.port and gateway.port are both port 30100"),
        (
            _SECOND + "[serving]\nport = 30100\n[gateway]\nport = 30101",
            "serving.port + 1, of device 'c', and gateway.port are both port 30101",
        ),
        (
            _SECOND + "serving_url = 'http://127.0.0.1:30100'\n[gateway]\nport = 30100",
            "serving_url of device 'c' and gateway.port are both port 30100",
        ),
        (
            _SECOND + "serving_url = 'http://localhost:30100'\n[serving]\nport = 30100",
            "serving.port and serving_url of device 'c' are both port 30100",
        ),
        (_SECOND + "serving_url = 'http://[::1]'\n[gateway]\nport = 80", "are both port 80: change one of them"),
        (_SECOND + "[serving]\nport = 65535", "serving.port + 1, of device 'c', is 65536, and the last port is 65535"),
    ],
)
def test_no_two_servers_of_a_host_have_one_port(text, named):
    with pytest.raises(ConfigError) as caught:
        config.parse(MINIMAL + text, "fleet.toml")
    assert named in str(caught.value)


def test_ports_of_other_hosts_and_ports_of_devices_that_somebody_else_serves_are_free():
    text = "serving_url = 'http://10.0.0.1:30100'\n[serving]\nport = 30102\n[gateway]\nport = 30100"
    assert config.parse(MINIMAL + _SECOND + text, "fleet.toml").gateway.port == 30100
    text = "serving_url = 'http://127.0.0.1:30200'\n[serving]\nport = 30100\n[gateway]\nport = 30101"
    assert config.parse(MINIMAL + _SECOND + text, "fleet.toml").gateway.port == 30101
