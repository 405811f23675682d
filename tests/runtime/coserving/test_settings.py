from pathlib import Path

import pytest

from rose.runtime.coserving.settings import PluginSettings


def test_settings_survive_their_way_through_the_environment():
    settings = PluginSettings("rollout", Path("/p"), Path("/s"), gated=True, host_cores=(0, 3))
    assert PluginSettings.from_environment(settings.to_environment()) == settings


@pytest.mark.parametrize("role", [{}, {"ROSE_PLUGIN_ROLE": ""}, {"ROSE_PLUGIN_ROLE": "serving"}])
def test_a_server_that_knows_nothing_of_rose_serves_and_is_not_attached(role):
    assert PluginSettings.from_environment(role) == PluginSettings("serving", None)
    page = {"ROSE_PLUGIN_PAGE": "/dev/shm/rose-run/gpu-0/page"}
    assert PluginSettings.from_environment({**role, **page}).page == Path("/dev/shm/rose-run/gpu-0/page")


def test_the_plugin_is_kept_out_or_its_role_is_known():
    assert PluginSettings.from_environment({"ROSE_PLUGIN_ROLE": "off", "ROSE_PLUGIN_PAGE": "/p"}) is None
    with pytest.raises(ValueError, match="ROSE_PLUGIN_ROLE is 'on'; it must be 'serving', 'rollout' or 'off'"):
        PluginSettings.from_environment({"ROSE_PLUGIN_ROLE": "on"})
