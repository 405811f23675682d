"""Joining a Ray cluster that is not there: what is wrong is said soon, and in words."""

from __future__ import annotations

import pytest
import ray

from rose.errors import UserError
from rose.runtime.engines.ports import free_port
from rose.runtime.errors import DeploymentError, PartDiedError
from rose.runtime.service import fabric
from rose.runtime.service.fabric import Fabric


@pytest.mark.parametrize("address", ["nonsense", "auto", "ray://10.0.0.1:10001", "10.0.0.1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UserError, match="must be a host and port of Ray's head"):
        Fabric("test").join(address)


def test_an_address_at_which_nothing_listens_is_named(monkeypatch):
    monkeypatch.setattr(fabric, "_LISTENS_S", 0.2)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(DeploymentError, match=f"no Ray cluster is at {address} .*refused.*correct `--address`"):
        Fabric("test").join(address)


def test_of_an_actor_that_could_not_begin_the_reason_comes_first(monkeypatch):
    traceback = "ray::Keeper.__init__() (pid=7)\n  File ...\nrose.runtime.errors.FolderError: state: /nope\n"
    died = ray.exceptions.RayActorError(
        error_msg=f"The actor died because of an error raised in its creation task, {traceback}", actor_init_failed=True
    )

    def get(*_, **__):
        raise died

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(PartDiedError, match=r"^rose.runtime.errors.FolderError: state: /nope$"):
        Fabric("test").answer(None, 1.0)
