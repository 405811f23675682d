"""`rose ledger receipt`, `verify --against` and `witness`: as commands, and the witness as a process."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rose import cli
from rose.ledger import layout
from rose.ledger.evidence import receipt
from rose.ledger.hosts import gateway
from tests.ledger.evidence import ledgers

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `rose ledger` in a folder that has a ledger."""
    _make(tmp_path)
    return _runs_in(tmp_path, monkeypatch)


def _make(folder: Path) -> None:
    root = layout.create(folder / "ledger")
    ledgers.write(root, "a", epochs=2)
    ledgers.write(root, "b")


def _runs_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("ROSE_LEDGER", raising=False)
    return lambda *words: CliRunner().invoke(cli.app, ["ledger", *map(str, words)])


def _rewrite(root: Path) -> None:
    def history(other: Path) -> None:
        ledgers.write(other, "a", epochs=2, power_mw=lambda seq: 9 if seq >= 4 else 7)
        ledgers.write(other, "b")

    ledgers.rewritten(root, history)


def test_a_receipt_is_written_here_and_verified_against(run: Run, tmp_path: Path) -> None:
    done = run("receipt", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    path = Path(facts["file"])
    assert re.fullmatch(r"rose-receipt-[0-9a-f]{8}-\d{8}T\d{6}Z\.json", path.name)
    assert (path.parent, facts["events"], facts["writers"]) == (tmp_path, 12, 2)
    ledgers.write(tmp_path / "ledger", "b")
    held = run("verify", "--against", path)
    assert held.exit_code == 0, held.output
    assert "4 events came since the newest; 4 of them carry a time before it" in held.stdout
    assert "The ledger is sound." in held.stdout
    told = json.loads(run("verify", "--against", path, "--key", facts["key"], "--json").stdout)
    assert told["against"]["receipts"][0]["key"] == facts["key"]
    assert (told["against"]["events_since"], told["ok"]) == (4, True)


@pytest.mark.long
def test_a_rewritten_ledger_gives_exit_code_1_and_says_from_where(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    run("receipt", "--out", "kept/one.json")
    _rewrite(tmp_path / "ledger")
    assert run("verify").exit_code == 0
    done = run("verify", "--against", "kept")
    assert done.exit_code == 1
    assert "writer a was rewritten or set back: its events up to seq 7 are not those of kept/one.json" in done.stdout
    assert "The ledger is sound." not in done.stdout
    assert json.loads(run("verify", "--against", "kept", "--json").stdout)["ok"] is False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a receipt, a damaged one, an empty folder and another ledger beside it; nothing changes them."""
    folder = tmp_path_factory.mktemp("folder")
    _make(folder)
    (folder / "empty").mkdir()
    (folder / "kept.json").write_bytes(receipt.take(folder / "ledger").content())
    (folder / "damaged.json").write_bytes((folder / "kept.json").read_bytes()[:-9])
    ledgers.write(layout.create(folder / "other"), "a")
    return folder


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("verify", "--against", "gone.json"), "cannot read gone.json"),
        (("verify", "--against", "damaged.json"), "damaged.json is not a receipt, or it is damaged"),
        (("verify", "--against", "empty"), "empty holds no receipt"),
        (("verify", "--against", "kept.json", "--key", "ab"), "was signed by the key"),
        (("verify", "--incremental", "--against", "kept.json"), "--against reads every byte"),
        (("verify", "--key", "ab"), "--key is for the receipts that --against names"),
        (("verify", "--ledger", "other", "--against", "kept.json"), "kept.json is of the ledger"),
        (("receipt", "--out", "ledger/receipt.json"), "lies in the ledger"),
        (("receipt", "--out", "ledger/live/receipt.json"), "lies in the ledger"),
        (("receipt", "--to", "ledger/receipts"), "lies in the ledger"),
        (("receipt", "--out", "no/such/folder.json"), "cannot write"),
        (("receipt", "--out", "kept.json"), "kept.json exists; name another file by --out"),
        (("receipt", "--object-lock", "1d"), "--object-lock is for the copy that --to makes"),
        (("receipt", "--to", "away", "--object-lock", "1d"), "only S3 has Object Lock"),
        (("receipt", "--anchor", "'"), "is not a command"),
        (("witness", "--state", "state"), "name the ledger's gateway by --server, or its folder by --ledger"),
        (("witness", "--state", "ledger/state", "--ledger", "ledger", "--once"), "lies in the ledger"),
        (("witness", "--state", "state", "--ledger", "gone", "--once"), "is not a ledger"),
        (("witness", "--state", "state", "--server", "grpc://127.0.0.1:1", "--once"), "no gateway answers at"),
        (("witness", "--state", "state", "--ledger", "ledger", "--every", "soon"), "'soon' is not a duration"),
    ],
)
def test_what_cannot_be_carried_out_gives_exit_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    before = _documents(folder)
    done = _runs_in(folder, monkeypatch)(*words)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    if words[0] == "receipt":
        assert _documents(folder) == before


def _documents(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix == ".json")


def test_a_copy_is_kept_elsewhere(run: Run, tmp_path: Path) -> None:
    done = run("receipt", "--to", "away")
    assert done.exit_code == 0, done.output
    assert f"copied to file://{tmp_path}/away/rose-receipt-" in done.stdout
    (copy,) = (tmp_path / "away").iterdir()
    assert copy.read_bytes() == (tmp_path / copy.name).read_bytes()


@pytest.fixture
def locked_bucket() -> Iterator[tuple[Any, list[str]]]:
    server_of = pytest.importorskip("moto.server", reason="needs an S3 server: pip install 'moto[server]' s3fs")
    s3fs = pytest.importorskip("s3fs", reason="needs an S3 client: pip install 'moto[server]' s3fs")
    server = server_of.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "key", "secret": "secret", "endpoint_url": f"http://{host}:{port}"}
    fs = s3fs.S3FileSystem(**options)
    fs.call_s3("create_bucket", Bucket="receipts", ObjectLockEnabledForBucket=True)
    yield fs, [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
    server.stop()


def test_a_receipt_and_an_archive_are_locked(run: Run, locked_bucket: tuple[Any, list[str]]) -> None:
    fs, options = locked_bucket
    place = ("--to", "s3://receipts/here", "--object-lock", "30d", "--lock-mode", "governance", *options)
    done = run("receipt", "--json", *place)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    held = fs.call_s3("head_object", Bucket="receipts", Key=facts["copy"].removeprefix("s3://receipts/"))
    assert held["ObjectLockMode"] == "GOVERNANCE"
    assert facts["locked_until"][:10] == held["ObjectLockRetainUntilDate"].isoformat()[:10]
    run("compact", "--grace", "0")
    assert run("archive", "--older-than", "1d", *place).exit_code == 0
    assert run("archive", "--older-than", "1d", *place[:4], "--lock-mode", "legal", *options).exit_code == 2


def test_an_anchor_is_kept_and_one_that_fails_gives_exit_code_1(run: Run, tmp_path: Path) -> None:
    done = run("receipt", "--out", "one.json", "--anchor", "sha256sum")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "one.json.anchor").read_text().endswith("/one.json\n")
    failed = run("receipt", "--out", "two.json", "--anchor", "false")
    assert failed.exit_code == 1
    assert "the anchor command 'false' failed with exit code 1" in failed.stderr
    assert receipt.read(tmp_path / "two.json").events == 12
    assert not (tmp_path / "two.json.anchor").exists()
    again = run("receipt", "--out", "one.json", "--force", "--anchor", "false")
    assert (again.exit_code, (tmp_path / "one.json.anchor").exists()) == (1, False)


@pytest.mark.long
def test_a_witness_countersigns_once_and_refuses_what_was_rewritten(run: Run, tmp_path: Path) -> None:
    words = ("witness", "--ledger", "ledger", "--state", "state", "--once")
    assert "2 writers, 12 events (+12); countersigned in" in run(*words).stdout
    assert json.loads(run(*words, "--json").stdout)["new_events"] == 0
    assert run("verify", "--against", "state").exit_code == 0
    _rewrite(tmp_path / "ledger")
    assert run("verify").exit_code == 0
    refused = run(*words)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "writer a was rewritten: its events up to seq 7 are not what they were" in refused.stderr
    assert run("verify", "--against", "state").exit_code == 1


def _witness(folder: Path, url: str) -> subprocess.Popen[str]:
    words = ("witness", "--server", url, "--state", "state", "--every", "0.05s", "--json")
    return subprocess.Popen(
        [sys.executable, "-m", "rose.cli", "ledger", *words],
        cwd=folder,
        env={**os.environ, "ROSE_LEDGER_TOKEN": "t0ken-of-enough-characters"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_a_witness_that_is_killed_goes_on_where_it_was(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    with gateway.serve(root, "127.0.0.1", 0, token="t0ken-of-enough-characters") as url:
        for _ in range(3):
            with _witness(tmp_path, url) as process:
                assert process.stdout is not None
                json.loads(process.stdout.readline())
                for _ in range(3):
                    ledgers.write(root, "b", per_epoch=1)
                    time.sleep(random.uniform(0, 0.1))
                process.kill()
        with _witness(tmp_path, url) as process:
            assert process.stdout is not None
            line = json.loads(process.stdout.readline())
            assert receipt.read(Path(line["file"])).writers["b"].next_seq == 4 + 2 * 9
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    assert run("verify", "--against", "state").exit_code == 0
    _rewrite(root)
    with (
        gateway.serve(root, "127.0.0.1", 0, token="t0ken-of-enough-characters") as url,
        _witness(tmp_path, url) as process,
    ):
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert "refused: ledger" in process.stderr.read()
    assert len(list((tmp_path / "state" / "refused").iterdir())) == 1
