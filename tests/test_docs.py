"""Documentation: commands run, files validate, links lead somewhere."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

from dashboard.login import Login
from rose import cli, config
from rose.config.example import demo
from rose.events import Device, DeviceSlice, Lease, Run
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing import period
from rose.pricing.alerts import AlertsConfig
from rose.pricing.closing import close as closing
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import adopt
from rose.pricing.watch import budget

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = typer.main.get_command(cli.app)
#: What the documents show of it is run on a small ledger with the same hour.
SAMPLE, SAMPLE_US = "sample_traces/ledger", 1_795_464_000_000_000

#: Commands that end within a second are run. All others are parsed, and run by tests of their own.
CHEAP = (
    *("--help", "config", "price", "sql", "query", "schema", "report", "ledger", "jobs", "books", "cost", "changes"),
    *("forecast", "saved", "reconcile", "explain", "alerts", "export", "attach"),
)
#: Those of them that go on until they are stopped, with the option that makes one do so; their own tests run them.
ENDLESS = {("ledger", "forward"): None, ("jobs", "serve"): None, ("api", "serve"): None}
#: Run elsewhere: those that need an SGLang server, send messages, or need a ledger of a whole day.
ELSEWHERE = (["attach", "--url"], ["alerts", "--test"], ["alerts"], ["reconcile", "sample_traces/vendor_focus.csv"])
#: Documents whose programs need a server, and the tests that run them.
PROGRAMS_ELSEWHERE = {"training.md": "tests/client/test_documented.py", "README.md": "tests/client/test_documented.py"}
#: Where the API answers by default, and the test that makes the calls that are documented.
API, API_CALLS_RUN_BY = "http://127.0.0.1:9470/", "tests/pricing/commands/test_api.py"
VARIABLES = {"PIP_EXTRA_INDEX_URL", "HOME", "ROSE_TESTS_LONG", "ROSE_TESTS_VERIFIERS_PYTHON"}
VARIABLES |= {"OPENAI_BASE_URL", "OPENAI_API_KEY"}


@dataclass(frozen=True)
class Block:
    document: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.name}: {self.text.strip().splitlines()[0][:50]}"


def blocks(language: str, documents: list[Path] | None = None) -> list[Block]:
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [
        Block(document, language, text)
        for document in documents or DOCUMENTS
        for text in fence.findall(document.read_text(encoding="utf-8"))
    ]


def commands() -> list[tuple[str, str]]:
    return [
        (block.document.name, line.strip())
        for block in blocks("sh")
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]


def words_of(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        assert words[0].partition("=")[0] in VARIABLES, f"{line}: no document may set {words[0]}"
        words = words[1:]
    return words[: words.index(">")] if ">" in words else words


def is_rose(words: list[str]) -> bool:
    return words[0] in ("rose", ".venv/bin/rose")


def runs(words: list[str]) -> bool:
    if not is_rose(words) or words[1] not in CHEAP or words[1:3] in ELSEWHERE:
        return False
    path = tuple(words[1:3])
    return path not in ENDLESS or (ENDLESS[path] is not None and ENDLESS[path] not in words)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    for block in blocks("toml"):
        name = re.match(r"# (\w+\.toml)\n", block.text)
        assert name, f"{block}: begin a file with its name in a comment, such as `# fleet.toml`"
        (folder / name[1]).write_text(block.text, encoding="utf-8")
    hooks = "".join(f"{name}=jsons://hooks.example.com/rose\n" for name in ("finance", "on-call"))
    (folder / "alert-urls").write_text(hooks, encoding="utf-8")
    (folder / "alert-urls").chmod(0o600)
    for run_id, at_us in (("run", 1_780_000_000_000_000), ("sample", SAMPLE_US)):
        record(folder / "ledger", run_id, at_us)
    june_2_us = 1_780_390_800_000_000
    book = pricebook.load(folder / "prices.toml")
    adopt(Ledger(folder / "ledger"), book, by="ann")
    closing.close(Ledger(folder / "ledger"), period.of_month("2026-05"), book, now_us=june_2_us)
    budget.set_budget(Ledger(folder / "ledger"), "research", "12000", period.of_month("2026-05"))
    return folder


def record(ledger: Path, run_id: str, at_us: int) -> None:
    hour_ns = 3_600_000_000_000
    t0_ns, t1_ns = at_us * 1000, at_us * 1000 + hour_ns
    serving = {"device_id": "serving-0", "pool": "serving", "device_class": "cpu-core"}
    lease = {"device_id": "serving-0", "lease_id": run_id, "kv_budget_bytes": 1, "compute_share": 1.0}
    with LedgerWriter.open(ledger, f"test-{run_id}", run_id) as writer:
        writer.record(Run(at_us=at_us, action="started", name="documented"))
        writer.record(Device(at_us=at_us, action="joined", t_ns=t0_ns, **serving))
        writer.record(Lease(at_us=at_us, action="granted", expires_at_us=at_us, **lease))
        writer.record(Lease(at_us=at_us + 1, action="released", expires_at_us=at_us, **lease))
        quarter = {f"{bucket}_ns": hour_ns // 4 for bucket in ("serving", "rollout", "headroom", "idle")}
        rest = dict.fromkeys(("train_ns", "sync_ns", "activation_ns"), 0)
        writer.record(DeviceSlice(device_id="serving-0", t0_ns=t0_ns, t1_ns=t1_ns, **quarter, **rest))
        writer.record(Device(at_us=at_us + 9, action="left", t_ns=t1_ns, **serving))
        writer.record(Run(at_us=at_us + 9, action="ended", name="documented"))


def one_of_each_command() -> list[tuple[str, str]]:
    lines = [(document, line) for document, line in commands() if runs(words_of(line))]
    chosen: dict[str, tuple[str, str]] = {}
    for document, line in sorted(lines, key=lambda pair: SAMPLE in pair[1]):
        chosen.setdefault(path_of(words_of(line)), (document, line))
    return sorted(chosen.values(), key=lines.index)


def path_of(words: list[str]) -> str:
    command, path = COMMANDS, ["rose"]
    for word in words[1:]:
        if not isinstance(command, TyperGroup) or word not in command.commands:
            break
        command, path = command.commands[word], [*path, word]
    return " ".join(path)


@pytest.mark.parametrize(("document", "line"), one_of_each_command())
def test_a_documented_command_runs(workplace, monkeypatch, document, line):
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("ROSE_LEDGER", "ROSE_PRICE_BOOK"):
        monkeypatch.delenv(name, raising=False)
    # In this process: a new one would spend most of its time on imports, which the command line's own tests cover.
    arguments, _, file = line.replace(SAMPLE, "ledger").partition(" > ")
    done = CliRunner().invoke(cli.app, words_of(arguments)[1:])
    assert done.exit_code == 0, f"{document}: {line}\n{done.output}\n{done.exception!r}"
    if file:
        (workplace / file.split()[0]).write_text(done.stdout, encoding="utf-8")


def test_every_documented_command_exists():
    for document, line in dict.fromkeys(commands()):
        check_exists(document, line)


def check_exists(document: str, line: str) -> None:
    words = words_of(line)
    where = f"{document}: {line}"
    if is_rose(words):
        check_rose(words[1:])
    elif words[0] == "make":
        for target in words[1:]:
            assert target in make_targets(), f"{where}: no such target"
    elif words[:2] == ["pip", "install"]:
        extra = re.fullmatch(r"\.(?:\[(\w+)\])?", words[2])
        assert extra, f"{where}: only this project's extras are documented"
        assert extra[1] in (None, *project()["optional-dependencies"]), f"{where}: no such extra"
    elif words[:3] == [".venv/bin/python", "-m", "pytest"]:
        assert (ROOT / words[3]).exists(), f"{where}: no such tests"
    elif words[:2] == [".venv/bin/python", "tests/pricing/export/focus_validator.py"]:
        assert (ROOT / words[1]).exists(), where
    elif words[0] == ".venv/bin/python" and words[1].startswith("examples/"):
        name = Path(words[1]).stem
        assert name in (ROOT / "tests" / "examples" / f"test_{name}.py").read_text(encoding="utf-8"), where
    elif words[1] == "-m" and words[2].startswith("benchmarks."):
        assert (ROOT / words[2].replace(".", "/") / "__main__.py").exists(), where
    elif words[0] == "curl" and any(word.startswith(API) for word in words):
        assert document in (ROOT / API_CALLS_RUN_BY).read_text(encoding="utf-8"), where
    elif words[0] == "curl":
        check_gateway_call(document, words)
    else:
        pytest.fail(f"{where}: no test covers this command; add it to this file, or do not document it")


def check_rose(arguments: list[str]) -> None:
    command = COMMANDS
    while isinstance(command, TyperGroup) and arguments != ["--help"]:
        if command.invoke_without_command and (not arguments or arguments[0].startswith("-")):
            break
        name, *arguments = arguments
        assert name in command.commands, f"rose has no command {name!r}"
        command = command.commands[name]
    if arguments != ["--help"]:
        command.make_context("rose", list(arguments))


#: The tests that send a document's calls of the controller.
CALLS_SENT_BY = {
    "fleet.md": "tests/runtime/scheduling/test_run_requests.py",
    "training.md": "tests/runtime/scheduling/gateway/test_documented.py",
}


def check_gateway_call(document: str, words: list[str]) -> None:
    assert document in CALLS_SENT_BY, f"{document}: no test sends {words}"
    assert document in (ROOT / CALLS_SENT_BY[document]).read_text(encoding="utf-8")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def leaves(command: Any, path: tuple[str, ...] = ("rose",)) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for name, child in command.commands.items():
            yield from leaves(child, (*path, name))
    else:
        yield " ".join(path)


def test_every_command_is_in_a_document():
    text = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert [command for command in leaves(COMMANDS) if not re.search(rf"{command}(?![\w-])", text)] == []


def test_every_make_target_is_described():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `make (\w+)` \|", text, re.MULTILINE)) == make_targets()


@pytest.mark.parametrize("part", ["rose", "dashboard"])
def test_the_map_names_every_folder_of_the_code_and_no_other(part):
    mapped = re.findall(r"^\| `([\w/]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / part).rglob("*.py")}
    assert {folder for folder in mapped if folder.split("/")[0] == part} == folders


def test_every_shown_file_is_valid():
    for block in blocks("toml"):
        check_file(block)


def check_file(block: Block) -> None:
    fields = tomllib.loads(block.text)
    if "electricity" in fields:
        assert pricebook.parse(block.text, str(block)).device
    elif "rule" in fields:
        assert AlertsConfig.model_validate(fields).rule
    elif "auth" in fields:
        assert Login.model_validate(fields).allow
    else:
        assert config.parse(block.text, str(block)).device


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_a_shown_program_runs(workplace, monkeypatch, capsys, block):
    if (elsewhere := PROGRAMS_ELSEWHERE.get(block.document.name)) is not None:
        assert block.document.name in (ROOT / elsewhere).read_text(encoding="utf-8")
        return
    monkeypatch.chdir(workplace)
    exec(block.text.replace(SAMPLE, "ledger"), {"__name__": "__main__"})
    assert "ended" in capsys.readouterr().out or "print" not in block.text


def test_every_relative_link_leads_to_a_heading_that_is_there():
    for document in [*DOCUMENTS, ROOT / "sample_traces" / "README.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
            if not re.match(r"https?://", target):
                name, _, anchor = target.partition("#")
                file = document.parent / name if name else document
                assert file.exists(), f"{document.name} links to {target}"
                assert not anchor or anchor in anchors(file), f"{document.name} links to {target}"


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_budgets_to_try_a_fleet_without_a_gpu_are_the_demo_s():
    (block,) = [block for block in blocks("toml") if block.text.startswith("# cores.toml")]
    assert config.parse(block.text, str(block)).serving == demo([0, 1], ledger=Path("ledger")).serving


def test_only_checked_languages_are_fenced():
    for document in DOCUMENTS:
        opened = re.findall(r"^```(.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)[::2]
        assert set(opened) <= {"sh", "toml", "python", "text", "yaml"}, document.name
