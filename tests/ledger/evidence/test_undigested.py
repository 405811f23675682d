"""Events without digests, which nothing proves: somebody puts such events before those that a writer wrote."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rose.events import Ledger
from rose.ledger import examine, layout, segments
from rose.ledger.evidence import keys
from rose.ledger.growth import compaction
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from tests.ledger.evidence import ledgers


@pytest.fixture
def unsigned(tmp_path: Path) -> Path:
    """A writer that never signed, of whose epochs two were merged."""
    root = layout.create(tmp_path / "ledger")
    (tmp_path / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(keys.VARIABLE, str(tmp_path / "file" / "key"))
        ledgers.write(root, "u", epochs=3)
    compaction.compact(root, grace_s=0)
    compaction.compact(root, grace_s=0)
    return root


def forge_prefix(root: Path) -> None:
    """Other rows in the merged file, as of segments without digests; the chain goes on from the link that it had."""
    (manifest_path,) = root.glob("compacted/u/*.json")
    path = manifest_path.with_suffix(".parquet")
    manifest = json.loads(manifest_path.read_bytes())
    before = manifest["segments"]
    table = pq.read_table(path)
    column = table.schema.get_field_index("power_mw")
    pq.write_table(table.set_column(column, "power_mw", [[9] * table.num_rows]).cast(table.schema), path)
    bare = [
        {name: entry[name] for name in ("file", "sha256", "previous_sha256", "first_seq", "last_seq")}
        for entry in before
    ]
    # Where the digests begin again the link before is taken for the hash of a file.
    bare[-1]["sha256"] = before[-1]["chain_sha256"]
    manifest |= {"segments": bare, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    content = json.dumps(manifest, indent=1).encode()
    manifest_path.write_bytes(content)
    # The live segments that follow name the file of the one before them.
    tail = None
    (folder,) = root.glob("live/u/*")
    for name in segments.segment_names(folder):
        old = (folder / name).read_bytes()
        header = segments.read_header(old)
        sha256 = bare[-1]["sha256"] if tail is None else tail
        new = old.replace(header.previous_sha256.encode(), sha256.encode())
        assert len(new) == len(old)
        assert new != old
        (folder / name).unlink()
        tail = hashlib.sha256(new).hexdigest()
        last = folder / f"{name[:6]}-{tail}.parquet"
        last.write_bytes(new)
    (root / "heads/u.json").write_text(json.dumps({"segment": str(last.relative_to(root))}))
    detail = examine.recorded(root, "compaction", "compacted")[-1]
    detail |= {"sha256": manifest["sha256"], "manifest_sha256": examine.sha256_of(content)}
    with LedgerWriter.open(root, "compaction", layout.UPKEEP_RUN_ID) as log:
        log.record(Ledger(action="compacted", detail_json=json.dumps(detail)), durable=True)
    shutil.rmtree(root / "verified", ignore_errors=True)
    (root / layout.CATALOG).unlink()


def test_a_forged_prefix_without_digests_is_found(unsigned: Path) -> None:
    assert verify(unsigned).problems == []
    forge_prefix(unsigned)
    problems = verify(unsigned).problems
    assert any("compacted/u/" in problem and "it is not a manifest: it was forged" in problem for problem in problems)
