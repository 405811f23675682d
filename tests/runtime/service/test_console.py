import asyncio
import json
import subprocess
import sys
import unicodedata
from collections.abc import Iterator

import aiohttp
import pytest
from typer.testing import CliRunner

from rose import cli, config
from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.service import local_ray, memory
from rose.runtime.service.console import ControllerClient, find
from rose.runtime.service.memory import FleetMemory, Remembered
from tests import programs
from tests.runtime.scheduling.stand_ins import AGENT_TOKEN, beat, call, gateway, open_run, publish, report
from tests.test_config import MINIMAL

TOKEN = "a-token-of-the-tests"
FACTS = {"segments_waiting": 1200, "waiting_s": 30.0, "problem": "the token was revoked"}


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"

    def make() -> Gateway:
        return Gateway(
            "127.0.0.1",
            port,
            TOKEN,
            models=["tiny"],
            state=tmp_path_factory.mktemp("state"),
            fleet_run_id="fleet-1",
            devices={"d0": "rack-1", "d1": "rack-2", "d2": "rack-2"},
            agent_token=AGENT_TOKEN,
        )

    async def report_all() -> None:
        async with aiohttp.ClientSession(address, headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            beside = {"share": 0.31, "stretch": 1.18, "stretch_max": 1.25, "held_by": "stretch"}
            opened = await open_run(session, "grpo", team="research")
            await publish(session, opened)
            holds = {"device_id": "d0", "run_id": opened["run_id"]}
            lends = report("http://127.0.0.1:1", "e0", beside=beside, token_ids_only=True, **holds)
            starts = report("http://127.0.0.1:2", "e1", device_id="d0", alive=False, fault="it is being started")
            await beat(session, lends, starts, device_id="d0", host="rack-1")
            await beat(session, device_id="d1", fault="the disk is full", host="rack-2", host_facts=FACTS)

    with programs.in_thread(make):
        asyncio.run(report_all())
        yield address


def rose(*arguments: str, columns: int = 160) -> str:
    done = CliRunner().invoke(cli.app, [*arguments], env={"COLUMNS": str(columns)})
    assert done.exit_code == 0, done.output
    return done.output


def test_status_shows_devices_runs_and_why_nothing_is_lent(url):
    shown = rose("status", "--url", url, "--token", TOKEN)
    for part in (
        "fleet-1",
        "d0",
        "rack-1",
        "e0",
        "(token ids only)",
        "the disk is full",
        "grpo",
        "research",
        "d2: its agent has not",
    ):
        assert part in shown
    assert "e1 (away)" in shown
    assert "busy, lends 31% beside live requests, TPOT +18% of allowed 25%; waits: stretch" in shown
    assert "host rack-2: 1,200 segments of events wait on the host: the token was revoked" in shown
    assert "host rack-1" not in shown
    status = json.loads(rose("status", "--url", url, "--token", TOKEN, "--json"))
    assert [device["device_id"] for device in status["devices"]] == ["d0", "d1"]


HOSTILE = "[/nope]\x1b]0;owned\x07\x1b[2J\nFAKE LINE\r\t\u202etxt\u200f\u200b\ufeff\u2066\u2028\U000e0041[link=http://x]y[/link]"
SHOWN = r"[/nope]\x1b]0;owned\x07\x1b[2J\nFAKE LINE\r\t\u202etxt\u200f\u200b\ufeff\u2066\u2028\U000e0041[link=http://x]y[/link]"


async def shown_of_a_fleet_named(text: str, *command: str) -> str:
    async with gateway(TOKEN) as (session, url):
        run = await open_run(session, text, team=text)
        names = {"device_id": text, "run_id": run["run_id"], "lease_id": text}
        held = report("http://127.0.0.1:1", f"{text}-e0", borrowed=True, **names)
        away = report("http://127.0.0.1:2", f"{text}-e1", alive=False, fault=text, failed=text, **names)
        facts = {**FACTS, "problem": text}
        await beat(session, held, away, device_id=text, host=text, host_facts=facts)
        await beat(session, device_id=f"{text}-2", fault=text, host=text)
        await beat(session, device_id="drained", host=text)
        await call(session, "POST", "/devices/drained/drain", {"reason": text})
        return await asyncio.to_thread(rose, *command, "--url", url, "--token", TOKEN, columns=4000)


def test_names_are_text_to_a_terminal_and_are_as_they_are_in_json():
    hostile = asyncio.run(shown_of_a_fleet_named(HOSTILE, "status"))
    honest = asyncio.run(shown_of_a_fleet_named("an honest name", "status"))
    assert hostile.count("\n") == honest.count("\n")
    assert {char for char in hostile if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")} == {"\n"}
    assert hostile.count(SHOWN) == honest.count("an honest name") >= 8
    (run,) = json.loads(asyncio.run(shown_of_a_fleet_named(HOSTILE, "status", "--json")))["runs"]
    assert (run["name"], run["team"]) == (HOSTILE, HOSTILE)


async def shown_of_two_models() -> str:
    async with gateway(TOKEN, models=["tiny", "chat"]) as (session, url):
        await open_run(session, model="chat")
        await beat(session, report("http://127.0.0.1:1", model="tiny"), device_id="d0")
        return await asyncio.to_thread(rose, "status", "--url", url, "--token", TOKEN)


def test_status_names_the_model_of_each_engine_and_run_if_there_are_several(url):
    shown = asyncio.run(shown_of_two_models()).splitlines()
    assert "models tiny, chat" in " ".join(shown)
    engine, run = (next(line.split() for line in shown if line.strip().startswith(name)) for name in ("d0", "grpo"))
    assert "tiny" in engine
    assert "chat" in run
    assert "tiny" not in rose("status", "--url", url, "--token", TOKEN).split("\n", 1)[1]


def test_status_and_drain_do_not_import_the_configuration(url):
    for command in ("['status']", "['drain', '--all']", "['drain', '--all', '--undo']"):
        code = (
            "import sys; from rose import cli\n"
            f"cli.app([*{command}, '--url', '{url}', '--token', '{TOKEN}'], standalone_mode=False)\n"
            "sys.exit('rose.config' in sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_device_is_drained_and_lent_again(url):
    rose("drain", "d0", "--reason", "new driver", "--url", url, "--token", TOKEN)
    assert "drained: new driver" in rose("status", "--url", url, "--token", TOKEN)
    undo = ("drain", "d0", "--undo", "--url", url, "--token", TOKEN)
    assert rose(*undo) == "d0: lent again\n"
    assert "drained" not in rose("status", "--url", url, "--token", TOKEN)
    assert rose(*undo) == "d0 was not drained\n"
    every = ("drain", "--all", "--url", url, "--token", TOKEN)
    assert rose(*every).startswith("d0, d1, d2: drained")
    assert rose(*every, "--undo") == "d0, d1, d2: lent again\n"


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["drain", "d9", "--token", TOKEN], 2, "unknown device 'd9'; there is d0, d1, d2"),
        (["status", "--token", "another"], 2, "refuses this token"),
        (["status"], 2, "needs a token: set --token to `gateway.token` of the fleet file, or to a named token"),
        (["train", "--token", TOKEN], 2, "is 'frozenlake-tiny', but the fleet at"),
        (["drain", "d0", "--undo", "--reason", "x", "--token", TOKEN], 2, "--reason does not go with --undo"),
        (["drain", "--token", TOKEN], 2, "or give --all"),
        (["drain", "d0", "--all", "--token", TOKEN], 2, "or give --all"),
    ],
)
def test_what_is_refused_says_what_to_do(url, arguments, code, named):
    done = CliRunner().invoke(cli.app, [*arguments, "--url", url])
    assert done.exit_code == code
    assert named in done.output


@pytest.mark.parametrize("url", ["10.0.0.1:30100", "http://10.0.0.1:30100/status", "ftp://10.0.0.1", "http://"])
def test_a_url_that_is_no_controller_s_root_is_refused(url):
    done = CliRunner().invoke(cli.app, ["status", "--url", url])
    assert done.exit_code == 2
    assert f"--url {url!r} must be the controller's root" in done.output


def test_tables_keep_their_words_whole_on_a_narrow_terminal(url):
    done = CliRunner().invoke(cli.app, ["status", "--url", url, "--token", TOKEN], env={"COLUMNS": "80"})
    assert max(map(len, done.output.splitlines())) <= 80
    for word in ("dedicated", "0/8", "version", "queued", "running", "engines", "open"):
        assert word in done.output.split()


def test_a_controller_that_is_away_is_named():
    done = CliRunner().invoke(cli.app, ["status", "--url", f"http://127.0.0.1:{free_port()}"])
    assert done.exit_code == 1
    assert "no controller answers at http://127.0.0.1:" in done.output


def test_of_a_fleet_whose_ray_runs_here_it_is_said_that_it_is_being_started_or_put_down(tmp_path, monkeypatch):
    file, ours = tmp_path / "fleet.toml", {tmp_path / "f": "127.0.0.1:1"}
    file.write_text(f'name = "f"\nstate = "{tmp_path}"\n{MINIMAL}')

    def said() -> str:
        done = CliRunner().invoke(cli.app, ["status", "-c", str(file)])
        assert done.exit_code in (1, 2)
        return done.output

    assert "start it with `rose up`" in said()
    monkeypatch.setattr(local_ray, "find", ours.get)
    monkeypatch.setattr(local_ray, "ended", lambda folder: [] if folder in ours else ["gcs_server", "raylet"])
    assert "fleet 'f' has no controller yet: `rose up` shows its progress" in said()
    kept, url = FleetMemory(config.load(file)), f"http://127.0.0.1:{free_port()}"
    kept.write(Remembered(run_id="r", url=url))
    assert f"no controller answers at {url} (" in said()
    assert "): fleet 'f' is starting: `rose up` shows its progress" in said()
    kept.write(Remembered(run_id="r", url=url, ending="keep"))
    assert "): fleet 'f' is ending: `rose up` waits for the end, and starts the fleet again" in said()
    ours.clear()
    assert f"no controller answers at {url}" in said()
    kept.write(Remembered(run_id="r", url=url))
    assert "Ray's gcs_server and raylet ended on this host: `rose up` starts Ray and the controller again" in said()
    kept.write(Remembered(run_id="r", url=url, ray_address=f"127.0.0.1:{free_port()}"))
    assert "Ray's GCS at 127.0.0.1:" in said()
    kept.forget()
    assert "no fleet 'f' runs here: `rose up` starts it" in said()


def test_status_loads_nothing_that_is_slow_to_load(url):
    program = (
        f"import sys; from rose import cli; sys.argv = ['rose', 'status', '--url', {url!r}, '--token', {TOKEN!r}]\n"
    )
    program += "try: cli.main()\nexcept SystemExit: pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "rose.runtime.service.console" in loaded
    heavy = {"duckdb", "numpy", "polars", "pyarrow", "ray", "torch", "starlette", "aiohttp", "rose.events"}
    assert not loaded & heavy


def test_the_controller_of_this_host_is_found_with_its_token(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Exception, match="no fleet has a controller on this host"):
        find(None, None, None)
    folder = tmp_path / ".local/state/rose/f"
    folder.mkdir(parents=True)
    kept = FleetMemory(config.parse(f'name = "f"\nstate = "{folder.parent}"\n{MINIMAL}', "fleet.toml"))
    kept.write(Remembered(run_id="r", url="http://127.0.0.1:5", gateway_token="secret"))
    assert vars(find(None, None, None)) == vars(ControllerClient("http://127.0.0.1:5", "secret", folder=folder))
    (folder.with_name("g")).mkdir()
    (folder.with_name("g") / memory.FILE).write_text((folder / memory.FILE).read_text())
    with pytest.raises(Exception, match=r"\(f, g\): choose with --config or --url"):
        find(None, None, None)
