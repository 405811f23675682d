import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from rose.events import BUCKETS, KINDS, NOT_MEASURED, Lease, Request
from rose.ledger import verified
from rose.ledger.files import catalog, keys, layout, rows, segments
from rose.ledger.writer import LedgerWriter

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_ID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def _values(field):
    if field.optional:
        return st.none() | _values(dataclasses.replace(field, optional=False))
    if field.allowed:
        return st.sampled_from(field.allowed)
    if field.range is not None:
        numbers = st.floats if field.sql_type == "DOUBLE" else st.integers
        return numbers(field.range.least, field.range.most)
    texts = _ID if field.filled else _TEXT
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return {"VARCHAR": texts, "DOUBLE": floats, "BOOLEAN": st.booleans()}[field.sql_type]


@st.composite
def _of(draw, kind):
    values = {each.name: draw(_values(each)) for each in rows.fields_of(kind) if each.name != "event_id"}
    if kind == "device_slice":
        parts = draw(st.lists(st.integers(0, 10**15), min_size=len(BUCKETS), max_size=len(BUCKETS)))
        t0 = draw(st.integers(0, 4 * 10**18))
        values |= {f"{bucket}_ns": part for bucket, part in zip(BUCKETS, parts, strict=True)}
        values |= {"t0_ns": t0, "t1_ns": t0 + sum(parts)}
    if kind in ("holdout", "power", "scale_down"):
        t0 = draw(st.integers(0, 4 * 10**18))
        values |= {"t0_ns": t0, "t1_ns": t0 + draw(st.integers(0, 10**15))}
    if kind == "power":
        values["source"] = NOT_MEASURED if values["power_mw"] is None else "rapl"
    return KINDS[kind](**values)


#: Any event of any kind, without an event_id of its own.
events = st.sampled_from(sorted(KINDS)).flatmap(_of)


@pytest.fixture(scope="session")
def any_event():
    return events


@pytest.fixture(scope="session")
def lease():
    usual = {"lease_id": "l", "kv_budget_bytes": 100, "compute_share": 1.0, "expires_at_us": 4 * 10**15}
    return lambda action="granted", **fields: Lease(**{"action": action, **usual, **fields})


@pytest.fixture(scope="session")
def request_event():
    usual = {"request_id": "q", "outcome": "completed", "prompt_tokens": 10, "output_tokens": 5}
    times = {"ttft_ns": 100, "tpot_mean_ns": 10, "tpot_max_ns": 20, "e2e_ns": 140, "send_delay_ns": 0}
    return lambda **fields: Request(**{**usual, **times, "ttft_budget_ns": 100, "tpot_budget_ns": 10, **fields})


@pytest.fixture
def other_key(tmp_path):
    return keys.load_or_make(tmp_path / "other.key")


@pytest.fixture(scope="session")
def one_lease(tmp_path_factory, lease):
    return record(tmp_path_factory.mktemp("one_lease") / "ledger", lease())


@pytest.fixture
def root(one_lease, tmp_path):
    return copied(one_lease, tmp_path / "ledger")


def record(root, *events, writer="w", run_id="r", durable=None):
    """Record events as one writer, close it, and return `root`."""
    with LedgerWriter.open(root, writer, run_id) as log:
        for event in events:
            log.record(event, durable=durable)
    return root


def flip(path, at, bit=1):
    """Flip a bit of the byte `at`, and return what the file held before."""
    content = path.read_bytes()
    path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
    return content


def copied(made, root):
    """A copy of a ledger, at `root`. Who reads it makes its catalog, which holds the path of its folder."""
    return Path(shutil.copytree(made, root, ignore=shutil.ignore_patterns(layout.CATALOG)))


def ask(root, query, values=()):
    with catalog.connect(root) as connection:
        return connection.execute(query, values or None).fetchall()


def close_epochs(root):
    for writer in layout.writers(root):
        segments.begin_epoch(root, segments.recover(root, writer))


def decay(path, root):
    """Change a bit of a file that `verified/files.json` knows, as a disk does: its size, inode and times stay."""
    flip(path, 20)
    stat = path.stat()
    stamp = [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
    memory = root / verified.FOLDER / "files.json"
    seen = json.loads(memory.read_bytes())
    for known in seen["known"]:
        if known[1] == str(path.relative_to(root)):
            known[2] = stamp
    memory.write_text(json.dumps(seen))


def run_on_small_disk(tmp_path, size, code, *arguments):
    """Run Python code with a new file system of `size` in `sys.argv[1]`, in a mount namespace; returns its output."""
    script, disk = tmp_path / "program.py", tmp_path / "disk"
    script.write_text(code)
    disk.mkdir()
    given = " ".join(map(str, arguments))
    inside = f"mount -t tmpfs -o size={size} none {disk} && exec {sys.executable} {script} {disk} {given}"
    try:
        allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("mount namespaces are not allowed here, so no small file system can be made")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", inside], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
