import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
import yaml

from rose import cli, config
from rose.errors import UserError
from rose.runtime.engines.ports import free_port
from rose.runtime.errors import DeploymentError, FolderError, PartDiedError
from rose.runtime.service import fabric, local_ray
from rose.runtime.service.fabric import Fabric


@pytest.mark.parametrize("address", ["nonsense", "auto", "ray://10.0.0.1:10001", "10.0.0.1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UserError, match="must be a host and port of Ray's head"):
        Fabric("test").join(address)


def test_an_address_at_which_nothing_listens_is_named(monkeypatch):
    monkeypatch.setattr(fabric, "_LISTENS_S", 0.2)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(DeploymentError, match=f"no Ray cluster is at {address}.*correct `--address`"):
        Fabric("test").join(address)


def test_of_an_actor_that_could_not_begin_the_reason_comes_first(monkeypatch):
    import ray

    traceback = "ray::HostActor.__init__() (pid=7)\n  File ...\nrose.runtime.errors.FolderError: state: /nope\n"
    died = ray.exceptions.RayActorError(
        error_msg=f"The actor died because of an error raised in its creation task, {traceback}", actor_init_failed=True
    )

    def get(*_, **__):
        raise died

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(PartDiedError, match=r"^rose.runtime.errors.FolderError: state: /nope$"):
        Fabric("test").answer(None, 1.0)


def test_a_folder_that_cannot_be_made_is_named_with_its_field(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=f"state: {tmp_path}/file/f cannot be created .* set `state` "):
        local_ray.start(tmp_path / "file" / "f")


DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KUBERNETES = DEPLOY / "kubernetes" / "fleet.yaml"


def check_rose(words: list[str]) -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    commands[words[0]].make_context("rose", words[1:])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_units(tmp_path, unit):
    # Programs are looked for too: this Python's stand for those of /opt/rose.
    folder = Path(sys.executable).parent
    (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/rose/bin", str(folder)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit.name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if unit.name in line and "rose-ray.service" not in line[20:]]
    assert not [line for line in ours if "is not executable" not in line]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_run_commands_that_there_are_and_kill_nothing_else(unit):
    text = unit.read_text()
    for command in re.findall(r"^Exec\w+=-?/opt/rose/bin/(.*)$", text, re.MULTILINE):
        if command.startswith("rose "):
            check_rose(shlex.split(command)[1:])
    # The dashboard runs nothing that has to outlive it.
    assert ("KillMode=process" in text) == (unit.name != "rose-dashboard.service")
    assert "Restart=always" in text


def test_stopping_the_fleet_s_unit_or_container_keeps_its_runs_and_its_death_stops_nothing():
    unit, container = (DEPLOY / "systemd" / "rose.service").read_text(), (DEPLOY / "Containerfile").read_text()
    # systemd runs it also when the command died by itself.
    assert "\nExecStop" not in unit
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert command.endswith("--stay --down-on-stop")
    assert '"--stay", "--down-on-stop"' in container


def test_the_ray_unit_has_what_a_ray_of_ours_has():
    text = (DEPLOY / "systemd" / "rose-ray.service").read_text()
    for name, value in local_ray.ENVIRONMENT.items():
        assert f"Environment={name}={value}\n" in text


def test_the_container_s_command_is_one():
    (line,) = re.findall(r"^CMD (.*)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    check_rose(yaml.safe_load(line)[1:])


def test_the_kubernetes_fleet_goes_together():
    items = list(yaml.safe_load_all(KUBERNETES.read_text()))
    documents = {item["kind"]: item for item in items}
    claims = [item["metadata"]["name"] for item in items if item["kind"] == "PersistentVolumeClaim"]
    file = documents["Secret"]["stringData"]["fleet.toml"]
    with pytest.raises(config.ConfigError, match=r"gateway\.token: .*`openssl rand -hex 32`"):
        config.parse(file, "fleet.toml")
    fleet = config.parse(file.replace("CHANGE-ME", "0123456789abcdef" * 4), "fleet.toml")
    spec = documents["RayCluster"]["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert [host.resource for host in fleet.hosts] == [
        re.search(r'"(rose-[\w-]+)\\"', group["rayStartParams"]["resources"])[1] for group in groups
    ]
    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        (state,) = [volume for volume in pod["volumes"] if volume["name"] == "state"]
        claims.remove(state["persistentVolumeClaim"]["claimName"])
        ray = {item["name"]: item["value"] for item in pod["containers"][0]["env"] if "value" in item}
        assert ray == local_ray.ENVIRONMENT
        # The image's user is not root, whose volumes are.
        user = re.search(r"--uid (\d+) rose", (DEPLOY / "Containerfile").read_text())
        # Only at the first mount: later it would open keys and tokens to their group.
        assert pod["securityContext"] == {"fsGroup": int(user[1]), "fsGroupChangePolicy": "OnRootMismatch"}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            if container.get("command", [""])[0] == "rose":
                check_rose(container["command"][1:])
    assert claims == []
    assert spec["authOptions"] == {"mode": "token"}
    secrets = {
        item["valueFrom"]["secretKeyRef"]["key"]
        for group in groups
        for container in group["template"]["spec"]["containers"]
        for item in container["env"]
        if item.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == "rose-fleet"
    }
    assert secrets <= documents["Secret"]["stringData"].keys()
    assert {port["port"] for port in documents["Service"]["spec"]["ports"]} == {fleet.gateway.port}


def test_a_rollout_engine_that_the_kernel_took_takes_neither_its_unit_nor_serving_with_it():
    for name in ("rose.service", "rose-ray.service"):
        text = (DEPLOY / "systemd" / name).read_text()
        # systemd would stop all of the unit, and a score of the unit's is serving's too, where ROSE starts it.
        assert "\nOOMPolicy=continue\n" in text
        assert "OOMScoreAdjust" not in text
    assert local_ray.ENVIRONMENT["RAY_worker_oom_score_adjustment"] == "0"
