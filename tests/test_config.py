import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rose import config
from rose.config import ConfigError, FleetConfig
from rose.config.example import demo, example

MINIMAL = """
[[device]]
id = "a"
pool = "serving"
device_class = "cpu-core"
cores = [0]
kv_bytes = 1000

[[device]]
id = "b"
pool = "rollout"
device_class = "cpu-core"
cores = [1]
kv_bytes = 1000
"""
_SECOND = MINIMAL.partition("\n\n")[0].replace('"a"', '"c"').replace("[0]", "[2]") + "\n"
SERVED = MINIMAL.replace('id = "a"', 'id = "a"\nserving_url = "http://x:1"') + _SECOND + 'serving_url = "http://x:1"'


def test_the_fleet_of_the_sample_ledger_can_be_used():
    assert config.load(Path(__file__).parents[1] / "sample_traces" / "fleet.toml").name == "sample"


def test_folders_of_a_file_are_whole_paths_and_a_home_is_each_host_s_own(tmp_path, monkeypatch):
    (tmp_path / "fleet.toml").write_text('ledger = "books"\ncache = "/var/cache"' + MINIMAL)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = config.load(Path("../fleet.toml"))
    assert loaded.ledger == tmp_path / "elsewhere" / "books"
    assert (str(loaded.cache), str(loaded.state)) == ("/var/cache", "~/.local/state/rose")


def test_a_folder_to_archive_to_is_a_whole_path_and_a_url_has_no_password(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for to, place in (("cold", str(tmp_path / "cold")), ("~/cold", "~/cold"), ("s3://bucket/a", "s3://bucket/a")):
        assert config.parse(MINIMAL + f"[archive]\nto = '{to}'\nafter_days = 90", "f.toml").archive.to == place
    with pytest.raises(ConfigError, match="archive: `to` has a password") as caught:
        config.parse(MINIMAL + "[archive]\nto = 's3://me:secret@bucket/a'\nafter_days = 90", "f.toml")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("trace", "whole"), [("t.csv", "/proc/t.csv"), ("~/t.csv", "~/t.csv"), ("bursty", "bursty"), ("none", "none")]
)
def test_a_trace_is_a_whole_path(trace, whole, monkeypatch):
    monkeypatch.chdir("/proc")
    assert config.parse(MINIMAL + f"[traffic]\ntrace = '{trace}'", "f.toml").traffic.trace == whole


def test_the_demo_needs_two_cores():
    fleet = demo([3, 5], ledger=Path("x"), steps=2, trace="t.csv")
    assert [device.cores for device in fleet.device] == [[3], [5]]
    assert (fleet.training.steps, fleet.traffic.trace) == (2, str(Path("t.csv").absolute()))
    with pytest.raises(ConfigError, match="two CPU cores and this process has 1"):
        demo([0], ledger=Path("x"))


def _classes(*priorities, ttft_ms=200):
    budgets = f"ttft_budget_ms = {ttft_ms}\ntpot_budget_ms = 20"
    return "".join(f"[[serving.classes]]\npriority = {priority}\n{budgets}\n" for priority in priorities)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("[serving]\nttft_budget_ms = -1", "serving.ttft_budget_ms"),
        ("[serving]\ntfft_budget_ms = 1", "serving.tfft_budget_ms: no such field; did you mean 'ttft_budget_ms'?"),
        ("[[host]]\nname = 'h'\nadress = 'x'", "hosts.0.adress: no such field; did you mean 'address'?"),
        ("[gateway]\nzzz = 1", "gateway.zzz: no such field; there is host, port, token"),
        ("[coserving]\nheadroom = 1.5", "coserving.headroom"),
        ("[coserving]\nlease_ttl_s = 0.5", "lease_ttl_s 0.5"),
        ("[coserving]\nmeter_s = 0.01", "meter_s 0.01 must be 0 or at least 0.1"),
        ("[gateway]\nhost = '0.0.0.0'", "set `token`"),
        ("[gateway]\ntoken = 'x'", "gateway.token: the token has 1 characters and needs 16"),
        ("[[device]]\nid = 'a'\npool = 'serving'\ndevice_class = 'x'\ncores = [2]\nkv_bytes = 1", "ids must differ"),
        ("[[device]]\nid = 'c'\npool = 'serving'\ndevice_class = 'x'\nkv_bytes = 1", "neither `gpu` nor `cores`"),
        ("nonsense", "not valid TOML"),
        ("[serving]\nttft_budget_ms = true", "serving.ttft_budget_ms: Input should be a valid number (got True)"),
        ("[serving]\nttft_budget_ms = 1e15", "serving.ttft_budget_ms: Input should be less than or equal to 3600000"),
        ("[serving]\ntpot_budget_ms = 1e-9", "serving.tpot_budget_ms: Input should be greater than or equal to 0.001"),
        (_classes(1, 2, 1), "serving.classes: priorities of classes must differ, got [1, 2, 1]"),
        (_classes(*range(9)), "serving.classes: List should have at most 8 items"),
        (_classes(1, ttft_ms=0), "serving.classes.0.ttft_budget_ms: Input should be greater than or equal to 0.001"),
        (_classes(2**40), f"serving.classes.0.priority: Input should be less than 2147483648 (got {2**40})"),
        (_classes(1).replace("ttft_b", "tfft_b"), "serving.classes.0.tfft_budget_ms: no such field; did you mean"),
        ("[serving_models.chat]\nmodle = 'x'", "serving_models.chat.modle: no such field; did you mean 'model'?"),
        ("[serving_models.chat]\ntpot_budget_ms = 0", "serving_models.chat.tpot_budget_ms"),
        (_SECOND + "serving_model = 'chta'\n[serving_models.chat]\n", "there is no [serving_models.chta] table"),
        (
            _SECOND + "serving_model = 'chat'\n[serving_models.chat]\nextra_args = ['--tp-size=2']",
            "serving_models.chat.extra_args has --tp-size 2",
        ),
        (
            _SECOND + "serving_model = 'chat'\n[serving_models.chat]\nport = 30099\n[gateway]\nport = 30100",
            "serving_models.chat.port + 1, of device 'c', and gateway.port are both port 30100",
        ),
        ("[rollout_models.chat]\nmodle = 'x'", "rollout_models.chat.modle: no such field; did you mean 'model'?"),
        ("[rollout_models.chat]", "rollout and rollout_models.chat both have model 'frozenlake-tiny'"),
        (
            "[rollout_models.chat]\nmodel = 'x'\nextra_args = ['--tp-size=2']",
            "rollout_models.chat.extra_args has --tp-size 2",
        ),
        ("[serving]\nport = '30000'", "serving.port: Input should be a valid integer (got '30000')"),
        ("[archive]\nto = '/cold'", "archive: `to` is '/cold', but `after_days` is missing"),
        ("[archive]\nafter_days = 90", "archive: after_days 90.0 needs a destination"),
        ("[archive]\ndelete = true", "archive: delete true needs a destination"),
        ("[archive]\nto = '/cold'\nafter_days = 0", "archive.after_days: Input should be greater than 0 (got 0)"),
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
        (_SECOND + "[serving]\nport = 65535", "serving.port + 1, of device 'c', is 65536, above the last port 65535"),
    ],
)
def test_a_wrong_field_is_named(change, named):
    refused(MINIMAL + change, named)


def test_a_device_serves_the_table_that_it_names():
    text = MINIMAL + _SECOND + "serving_model = 'chat'\n[serving]\nmodel = 'x'\n[serving_models.chat]\nmodel = 'y'"
    first, dedicated, second = (fleet := config.parse(text, "fleet.toml")).device
    assert [fleet.serving_on(device).model for device in (first, dedicated, second)] == ["x", "x", "y"]
    assert FleetConfig.model_validate_json(fleet.model_dump_json()) == fleet


def test_runs_may_name_the_models_of_all_rollout_tables():
    fleet = config.parse(MINIMAL + "[rollout_models.chat]\nmodel = 'y'\nmax_concurrent = 3", "fleet.toml")
    rollouts = {table: (one.model, one.max_concurrent) for table, one in fleet.rollouts.items()}
    assert rollouts == {"rollout": ("frozenlake-tiny", 64), "rollout_models.chat": ("y", 3)}
    assert FleetConfig.model_validate_json(fleet.model_dump_json()) == fleet


def refused(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "fleet.toml")
    assert named in str(caught.value)
    assert "fleet.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            MINIMAL.replace("cores = [0]", "gpu = 3").replace("cores = [1]", "gpu = 3"),
            "gpu 3 belongs to both 'a' and 'b'",
        ),
        (MINIMAL.replace("[1]", "[-1]"), "device.1.cores.0"),
        (MINIMAL.replace("[1]", "[1, 1]"), "device 'b' has a core twice in cores [1, 1]"),
        (MINIMAL.partition("\n\n")[0], "no device has pool 'rollout'"),
        (MINIMAL.replace('"b"', '"b"\nserving_url = "http://x:1"'), "device 'b' has pool 'rollout' and a serving_url"),
        (
            MINIMAL.replace('"b"', '"b"\nserving_model = "x"') + "[serving_models.x]",
            "pool 'rollout' and a serving_model",
        ),
        (MINIMAL.replace('"a"', '"a"\nhost = "x"'), "device 'a' is on host 'x', but there is no [[host]] table"),
        (SERVED, "serving_urls must differ"),
        *((SERVED.replace("http://x:1", url), "must be a server's root") for url in ("x:1", "http://x:1/v1")),
    ],
)
def test_devices_that_cannot_be_or_do_not_go_together_are_named(text, named):
    assert text != MINIMAL
    refused(text, named)


@pytest.mark.parametrize("table", ["[gateway]\ntoken = 271828", "[[gateway]]\ntoken = '271828'"])
def test_a_token_that_is_written_wrongly_is_not_repeated(table):
    with pytest.raises(ConfigError, match=r"gateway.*: Input should be a valid") as caught:
        config.parse(MINIMAL + table, "fleet.toml")
    assert "271828" not in str(caught.value)


def test_a_tag_s_name_can_be_asked_for_and_a_fleet_s_stays_in_its_folder():
    tags = [f'tags = {{ {json.dumps(name)} = "x" }}' for name in ("", "a b", 'a"', "a*", "a\n", "a" * 101)]
    for line in [*tags, *(f'name = "{name}"' for name in ("", "../x", "a/b", ".hidden"))]:
        with pytest.raises(ConfigError, match=line.split(maxsplit=1)[0]):
            config.parse(f"{line}\n{MINIMAL}", "fleet.toml")


def float_fields(model, path=""):
    for name, field in model.model_fields.items():
        annotation = str(field.annotation)
        if isinstance(field.annotation, type) and issubclass(field.annotation, config.Section):
            yield from float_fields(field.annotation, f"{name}.")
        elif "float" in annotation:
            yield f"{path}{name}"


def test_no_number_is_infinite():
    for field, value in itertools.product(float_fields(FleetConfig), ["inf", "-inf", "nan"]):
        section, _, name = field.rpartition(".")
        line = f"{name} = {value}\n"
        text = MINIMAL + f"[{section}]\n{line}" if section else line + MINIMAL
        with pytest.raises(ConfigError, match=f"{field}: "):
            config.parse(text, "fleet.toml")


@pytest.mark.parametrize("name", ["rack-1/gpu-0", "../../x", "..", ".", "gpu\\n0", "x" * 129])
def test_a_device_s_id_names_a_folder_and_no_other_place(name):
    with pytest.raises(ConfigError, match=r"device.*[Ii]d"):
        config.parse(MINIMAL.replace('"a"', f'"{name}"'), "fleet.toml")
    assert config.parse(MINIMAL.replace('"a"', '"MIG-7:0 (rack.1)"'), "fleet.toml").device[0].id == "MIG-7:0 (rack.1)"


@pytest.mark.parametrize(
    "arguments", [["--tp-size", "2"], ["--tensor-parallel-size=2"], ["--log-level=info", "--pp-size=2"]]
)
def test_a_serving_engine_that_shares_devices_has_one_rank(arguments):
    text = f"{MINIMAL}\n[serving]\nextra_args = {arguments}\n"
    with pytest.raises(ConfigError, match=r"serving\.extra_args has --[a-z-]+ 2: an engine on a lent device must have"):
        config.parse(text, "fleet.toml")
    config.parse(text.replace("2'", "1'"), "fleet.toml")
    config.parse(f"{text}[coserving]\nenabled = false\n", "fleet.toml")
    # Not ours to start: it is asked when it is attached.
    config.parse(text.replace('id = "a"', 'id = "a"\nserving_url = "http://x:1"'), "fleet.toml")


@pytest.mark.parametrize("coserving", ["", "[coserving]\nenabled = false\n"], ids=["lent", "dedicated"])
def test_a_rollout_engine_has_one_rank(coserving):
    text = f"{MINIMAL}\n[rollout]\nextra_args = ['--pp-size=2']\n{coserving}"
    with pytest.raises(ConfigError, match=r"rollout\.extra_args has --[a-z-]+ 2: versions are not split"):
        config.parse(text, "fleet.toml")
    config.parse(text.replace("2'", "1'"), "fleet.toml")


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="rose config"):
        config.load(tmp_path / "none.toml")


def test_contracts_load_without_torch_or_ray():
    script = (
        "import sys, rose.config, rose.events, rose.clock, rose.cli;"
        "heavy = {'torch', 'ray', 'sglang', 'duckdb', 'streamlit', 'polars', 'transformers'} & set(sys.modules);"
        "sys.exit(f'{heavy} loaded' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_whose_token_others_may_know_is_warned_of(tmp_path):
    file = tmp_path / "fleet.toml"

    def warned(token: str | None, mode: int) -> list[str]:
        file.write_text(MINIMAL + ("" if token is None else f"[gateway]\nhost = '0.0.0.0'\ntoken = '{token}'"))
        file.chmod(mode)
        return config.warnings(config.load(file), file)

    assert warned("0123456789abcdef" * 4, 0o600) == warned(None, 0o644) == []
    assert warned("0123456789abcdef" * 4, 0o640) == [
        f"{file} has gateway.token and has mode 0640, so that others may use it: type `chmod 600 {file}`"
    ]
    documented, readable = warned(config.DOCUMENTED_TOKEN, 0o644)
    assert "gateway.token is the documentation's example" in documented
    assert "has mode 0644" in readable
    assert config.DOCUMENTED_TOKEN not in documented + readable


def test_the_documented_token_is_that_of_the_documents():
    text = (Path(__file__).parents[1] / "docs" / "fleet.md").read_text(encoding="utf-8")
    assert f'token = "{config.DOCUMENTED_TOKEN}"' in text


def test_the_file_of_tokens_is_found_from_any_folder():
    fleet = config.parse(MINIMAL + "[gateway]\ntokens = 'tokens.json'", "fleet.toml")
    assert fleet.gateway.tokens == Path("tokens.json").absolute()


def test_the_example_is_valid_and_explains_every_field():
    text = example()
    fleet = config.parse(text, "example")
    assert [device.pool for device in fleet.device] == ["serving", "rollout"]
    assert fleet.serving == FleetConfig.model_fields["serving"].get_default(call_default_factory=True)

    def check(model):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name} has no explanation"
            assert name in text
            for table in config._tables(field.annotation):
                check(table)

    check(FleetConfig)
    check(config.DeviceConfig)
    added = config.parse(text + '[serving_models.chat]\nmodel = "y"\n[tags]\nteam = "x"', "example")
    assert (added.serving_models["chat"].model, added.tags) == ("y", {"team": "x"})


def test_ports_of_other_hosts_and_ports_of_devices_that_somebody_else_serves_are_free():
    text = "serving_url = 'http://10.0.0.1:30100'\n[serving]\nport = 30102\n[gateway]\nport = 30100"
    assert config.parse(MINIMAL + _SECOND + text, "fleet.toml").gateway.port == 30100
    text = "serving_url = 'http://127.0.0.1:30200'\n[serving]\nport = 30100\n[gateway]\nport = 30101"
    assert config.parse(MINIMAL + _SECOND + text, "fleet.toml").gateway.port == 30101
