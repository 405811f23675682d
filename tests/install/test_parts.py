"""Each part works where the wheel is installed with what its extra asks for, and nothing else."""

import functools
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rose.errors import EXTRAS
from rose.events import Device, DeviceSlice, Run
from rose.ledger.writer import LedgerWriter
from tests.client.fleet import MODEL, fleet
from tests.test_config import MINIMAL

ROOT = Path(__file__).parents[2]
OURS = ("rose", "dashboard", "sql", "sample_traces", "benchmarks")

BASE = "rose-serving"
#: A trainer brings its own torch.
TRAINER = (BASE, "torch")
#: What parts that work inside of SGLang, or start it, find with it.
TASKS = {"verifiers", "mcp"}  # Environments of other packages, which have their own.
ENGINE = {"sglang", "zmq", "setproctitle", "cuda"}
#: What parts may import at any time: requirements, and other packages.
PARTS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    **dict.fromkeys(("rose.config", "rose.tokens"), ((BASE,), set())),
    # On a host with a Ray of its own it looks at that.
    "rose.runtime.service.console": ((BASE,), {"psutil", "ray"}),
    # For a callback of its trainer.
    "rose.client": (TRAINER, {"transformers"}),
    **dict.fromkeys(("rose.runtime.coserving.attach", "rose.runtime.coserving.plugin"), (TRAINER, ENGINE)),
    **{
        part: (
            (f"{BASE}[{extra.replace('gpu', 'runtime')}]",),
            TASKS | ENGINE if extra in ("runtime", "gpu") else set(),
        )
        for part, extra in EXTRAS.items()
    },
}

Closure = Callable[..., set[str]]
Done = subprocess.CompletedProcess[str]
Python = Callable[..., Done]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, since setuptools writes beside what it builds."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in OURS:
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    program = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, folder], cwd=folder / "source", check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def closure(wheel: Path) -> Closure:
    """Return a function from requirements to the distributions of this environment that they resolve to."""
    (info,) = (path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    ours = metadata.PathDistribution(info)

    @functools.cache
    def resolve(*wanted: str) -> set[str]:
        seen, todo, found = set(), [Requirement(text) for text in wanted], set()
        while todo:
            requirement = todo.pop()
            name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
            if (name, extras) in seen:
                continue
            seen.add((name, extras))
            found.add(name)
            environments = [{"extra": extra} for extra in extras or ("",)]
            distribution = ours if name == BASE else metadata.distribution(name)
            for needed in map(Requirement, distribution.requires or ()):
                if needed.marker is None or any(map(needed.marker.evaluate, environments)):
                    todo.append(needed)
        return found - {BASE}

    return resolve


@pytest.fixture(scope="module")
def python(wheel: Path, closure: Closure, tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Return a function that runs Python where the wheel and what requirements resolve to are installed."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--ignore-installed", wheel], check=True)

    @functools.cache
    def site(*wanted: str) -> Path:
        packages = tmp_path_factory.mktemp("site")
        for distribution in map(metadata.distribution, closure(*wanted)):
            for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not (packages / name).exists():
                    (packages / name).symlink_to(str(distribution.locate_file(name)))
        return packages

    def run(*arguments: object, having: tuple[str, ...] = (BASE,), **variables: str) -> Done:
        environment = {**os.environ, **variables, "PYTHONPATH": str(site(*having)), "PYTHONDONTWRITEBYTECODE": ""}
        command = [folder / "bin" / "python", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)

    return run


def printed(done: Done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record an hour of a serving device in May."""
    root, at_us, hour_ns = tmp_path_factory.mktemp("ledger") / "ledger", 1_780_000_000_000_000, 3_600_000_000_000
    device = {"device_id": "serving-0", "pool": "serving", "device_class": "cpu-core"}
    times = dict.fromkeys(("rollout_ns", "train_ns", "sync_ns", "activation_ns", "headroom_ns", "idle_ns"), 0)
    t0_ns, t1_ns = at_us * 1000, at_us * 1000 + hour_ns
    with LedgerWriter.open(root, "test", "run") as writer:
        writer.record(Run(at_us=at_us, action="started", name="little"))
        writer.record(Device(at_us=at_us, action="joined", t_ns=t0_ns, **device))
        writer.record(DeviceSlice(device_id="serving-0", t0_ns=t0_ns, t1_ns=t1_ns, serving_ns=hour_ns, **times))
        writer.record(Device(at_us=at_us + 9, action="left", t_ns=t1_ns, **device))
        writer.record(Run(at_us=at_us + 9, action="ended", name="little"))
    return root


def test_no_part_imports_what_its_extra_does_not_bring(closure: Closure) -> None:
    """Imports inside of functions count, too."""
    graph = grimp.build_graph(*OURS, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None)
    owners = metadata.packages_distributions()
    foreign = {}
    for part, (wanted, others) in PARTS.items():
        modules = [name for name in graph.modules if f"{name}.".startswith(f"{part}.")]
        imported = {other for name in modules for other in graph.find_upstream_modules(name)}
        packages = {name for name in imported if name.split(".")[0] not in {*OURS, *sys.stdlib_module_names, *others}}
        assert packages, part
        brought = closure(*wanted)
        foreign[part] = {name for name in packages if not brought & {*map(canonicalize_name, owners.get(name, ()))}}
    assert {part: names for part, names in foreign.items() if names} == {}


def test_the_base_install_has_its_commands(python: Python, tmp_path: Path) -> None:
    script = next(Path(python("-c", "import sys; print(sys.prefix)").stdout.strip()).glob("bin/rose"))
    assert "dashboard" in printed(python(script, "--help"))
    with fleet(tmp_path) as service:
        assert service.url in printed(python(script, "status", "--url", service.url))
    refused = python(script, "attach", "--url", service.url)
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)


FLEET = "fleet.toml"


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["ledger", "verify"], "ledger"),
        (["cost"], "pricing"),
        (["dashboard"], "dashboard"),
        (["up", "-c", FLEET], "runtime"),
        (["accept"], "gpu"),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(
    python: Python, tmp_path: Path, ledger: Path, arguments: list[str], extra: str
) -> None:
    (tmp_path / FLEET).write_text(MINIMAL)
    given = [tmp_path / FLEET if argument == FLEET else argument for argument in arguments]
    refused = python("-m", "rose.cli", *given, ROSE_LEDGER=str(ledger))
    assert refused.returncode == 2
    assert refused.stderr.endswith(f': pip install "rose-serving[{extra}]"\n')
    assert refused.stderr.count("\n") == 1


TRAIN = """
import sys
from importlib.metadata import entry_points
from rose import client
with client.open_run(sys.argv[1], name="grpo", model=sys.argv[2]) as run:
    try:
        import torch
    except ModuleNotFoundError:
        run.publish({})
    print(run.publish({"w": torch.ones(3)}))
    generations = run.generate([[1], [1, 2]], {"max_new_tokens": 2}, group_id="g0", step=0)
    run.judge(generations, [0.0, 1.0], verifier="tests")
    print([generation.output_ids for generation in generations])
(plugin,) = entry_points(group="sglang.srt.plugins")
print(plugin.load().__name__)
"""


def test_a_trainer_and_an_engine_need_the_base_and_their_own_torch(python: Python, tmp_path: Path) -> None:
    with fleet(tmp_path) as service:
        assert "needs torch" in python("-c", TRAIN, service.url, MODEL).stderr
        lines = printed(python("-c", TRAIN, service.url, MODEL, having=TRAINER)).splitlines()
        assert lines == ["0", "[[1, 2], [2, 3]]", "register"]
        assert [run.facts.state for run in service.gateway.controller.runs] == ["closed"] * 2


def test_a_trainer_beside_engines_on_cores_loads_models_of_hugging_face(python: Python) -> None:
    program = "import torchvision; from transformers import LlamaForCausalLM; print(LlamaForCausalLM.__name__)"
    names = (BASE, "torchvision", "transformers")
    assert printed(python("-c", program, having=names)) == "LlamaForCausalLM\n"


def test_a_ledger_is_verified(python: Python, ledger: Path) -> None:
    printed(python("-m", "rose.cli", "ledger", "verify", "--ledger", ledger, having=(f"{BASE}[ledger]",)))


def test_a_ledger_is_priced(python: Python, ledger: Path) -> None:
    arguments = ("cost", "--period", "2026-05", "--ledger", ledger, "-b", "example")
    assert "serving-0" in printed(python("-m", "rose.cli", *arguments, "--by", "device", having=(f"{BASE}[pricing]",)))


SHOW = """
import sys
from streamlit.testing.v1 import AppTest
page = AppTest.from_file(sys.argv[1], default_timeout=60).run()
print(len(page.exception), bool(page.sidebar))
"""


def test_the_dashboard_shows_a_ledger(python: Python, ledger: Path) -> None:
    having = (f"{BASE}[dashboard]",)
    app = Path(python("-c", "import dashboard; print(dashboard.__file__)", having=having).stdout).with_name("app.py")
    assert printed(python("-c", SHOW, app, having=having, ROSE_LEDGER=str(ledger))) == "0 True\n"


def test_a_fleet_host_lacks_only_sglang(python: Python, tmp_path: Path) -> None:
    (tmp_path / FLEET).write_text(MINIMAL)
    refused = python("-m", "rose.cli", "up", "-c", tmp_path / FLEET, having=(f"{BASE}[runtime]",))
    assert (refused.returncode, "not installed: sglang." in refused.stderr) == (2, True), refused.stderr
    demo = python("-m", "rose.cli", "demo", "--ledger", tmp_path / "ledger", having=(f"{BASE}[runtime]",))
    assert (demo.returncode, demo.stderr.endswith('"rose-serving[pricing]"\n')) == (2, True), demo.stderr
