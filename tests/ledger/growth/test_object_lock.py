"""S3 Object Lock, on the S3 server of moto.

moto refuses to remove a locked version, but for governance with the right to bypass it. It does not refuse to shorten
a lock in compliance mode, which S3 does.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from rose.ledger import layout
from rose.ledger.growth import archive as archiving
from rose.ledger.growth import compaction
from rose.ledger.growth.archive import archive, restore
from rose.ledger.growth.object_lock import ObjectLock
from rose.ledger.growth.store import Store
from rose.ledger.layout import LedgerError
from rose.ledger.verify import verify

LOCK = ObjectLock(days=30)


@pytest.fixture
def root(archivable: Path) -> Path:
    return archivable


@pytest.fixture(scope="module")
def server(s3: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """The same, with a bucket that has no Object Lock."""
    s3[0].mkdir("plain")
    return s3


@pytest.fixture
def bucket(server: tuple[Any, dict[str, Any]], request: pytest.FixtureRequest) -> str:
    """A bucket of its own with Object Lock."""
    name = "locked-" + "".join(letter for letter in request.node.name.lower() if letter.isalnum())[-40:]
    server[0].call_s3("create_bucket", Bucket=name, ObjectLockEnabledForBucket=True)
    return name


def _versions(fs: Any, bucket: str, part: str = "") -> list[dict[str, Any]]:
    return [each for each in fs.call_s3("list_object_versions", Bucket=bucket)["Versions"] if part in each["Key"]]


@pytest.mark.parametrize("mode", ["compliance", pytest.param("governance", marks=pytest.mark.long)])
def test_copies_are_locked_and_cannot_be_removed(root: Path, server: Any, bucket: str, mode: Any) -> None:
    fs, options = server
    lock = ObjectLock(days=30, mode=mode)
    url = f"s3://{bucket}/ledger"
    done = archive(root, older_than_days=1, to=url, delete=True, grace_s=0, storage_options=options, lock=lock)
    assert done.left == 3
    versions = _versions(fs, bucket)
    assert len(versions) == 6
    month = datetime.now(UTC) + timedelta(days=30)
    for version in versions:
        held = fs.call_s3("head_object", Bucket=bucket, Key=version["Key"])
        assert held["ObjectLockMode"] == mode.upper()
        assert abs(held["ObjectLockRetainUntilDate"] - month) < timedelta(minutes=5)
        with pytest.raises(PermissionError, match=r"protected by object lock|Access Denied"):
            fs.call_s3("delete_object", Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])
    bypassed = {"Bucket": bucket, "Key": versions[0]["Key"], "VersionId": versions[0]["VersionId"]}
    if mode == "compliance":
        with pytest.raises(PermissionError):
            fs.call_s3("delete_object", **bypassed, BypassGovernanceRetention=True)
    else:
        fs.call_s3("delete_object", **bypassed, BypassGovernanceRetention=True)
    assert verify(root).problems == []


def test_what_is_locked_comes_back(root: Path, server: Any, bucket: str) -> None:
    url = f"s3://{bucket}/ledger"
    done = archive(root, older_than_days=1, to=url, delete=True, grace_s=0, storage_options=server[1], lock=LOCK)
    assert restore(root, url, storage_options=server[1]).events == done.events
    assert verify(root).problems == []


@pytest.mark.long
def test_a_copy_without_a_lock_gets_one_and_one_with_a_lock_keeps_it(root: Path, server: Any, bucket: str) -> None:
    fs, options = server
    url = f"s3://{bucket}/ledger"
    archive(root, older_than_days=1, to=url, delete=False, storage_options=options)
    assert "ObjectLockMode" not in fs.call_s3("head_object", Bucket=bucket, Key=_versions(fs, bucket)[0]["Key"])
    archive(root, older_than_days=1, to=url, delete=False, storage_options=options, lock=LOCK)

    def locks() -> list[Any]:
        heads = [fs.call_s3("head_object", Bucket=bucket, Key=version["Key"]) for version in _versions(fs, bucket)]
        return [(head["ObjectLockMode"], head["ObjectLockRetainUntilDate"]) for head in heads]

    first = locks()
    assert {mode for mode, _ in first} == {"COMPLIANCE"}
    # Shorter, or weaker: what stands is kept.
    for lock in (ObjectLock(days=3), ObjectLock(days=30, mode="governance"), LOCK):
        archive(root, older_than_days=1, to=url, delete=False, storage_options=options, lock=lock)
        assert locks() == first
    archive(root, older_than_days=1, to=url, delete=False, storage_options=options, lock=ObjectLock(days=60))
    assert all(new > old for (_, new), (_, old) in zip(locks(), first, strict=True))


@pytest.mark.long
def test_readers_count_what_was_merged_since_once_though_its_copies_stay(
    root: Path, server: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, options = server
    url = f"s3://{bucket}/ledger"
    archive(root, older_than_days=1, to=url, delete=False, storage_options=options, lock=LOCK)
    narrow = {version["Key"] for version in _versions(fs, bucket)}
    monkeypatch.setattr(compaction, "FANOUT", 2)
    compaction.compact(root, grace_s=0)
    archive(root, older_than_days=1, to=url, delete=False, storage_options=options, lock=LOCK)
    stems = {part.stem for part in layout.parts(root, "w") if part.state == "compacted"}
    files = Store(url, options)._fs.glob(f"{bucket}/ledger/compacted/*/*.parquet")
    assert {f"compacted/w/{file.rpartition('/')[2]}" for file in files} == {f"{stem}.parquet" for stem in stems}
    counted = pyarrow.dataset.dataset(files, filesystem=fs, format="parquet").count_rows(use_threads=False)
    last = [part for part in layout.parts(root, "w") if part.state == "compacted"][-1]
    assert counted == compaction.read_manifest(root, last)[0]["last_seq"] + 1
    assert narrow <= {version["Key"] for version in _versions(fs, bucket)}, "what is locked stays"


def test_the_archive_s_event_says_until_when(root: Path, server: Any, bucket: str) -> None:
    archive(root, older_than_days=1, to=f"s3://{bucket}/x", delete=False, storage_options=server[1], lock=LOCK)
    said = archiving.examine.recorded(root, "archive", "archived")
    until = datetime.now(UTC) + timedelta(days=30)
    assert len(said) == 3
    assert all(detail["locked_until"][:7] == until.isoformat()[:7] for detail in said)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("s3://plain/x", "bucket 'plain' has no Object Lock. Make one that has: `aws s3api create-bucket"),
        ("s3://no-such/x", "cannot ask s3://no-such whether it has Object Lock"),
        ("memory://x", "only S3 has Object Lock"),
    ],
)
def test_a_place_that_locks_nothing_is_refused_before_anything_is_copied(
    root: Path, server: Any, place: str, says: str
) -> None:
    options = server[1] if place.startswith("s3") else {}
    with pytest.raises(LedgerError, match=says):
        archive(root, older_than_days=1, to=place, delete=True, storage_options=options, lock=LOCK)
    assert "archived" not in [part.state for part in layout.chain(root, "w")]


def test_a_lock_that_is_none_is_refused(root: Path) -> None:
    with pytest.raises(LedgerError, match="lock mode 'legal' is not one of compliance, governance"):
        ObjectLock(days=1, mode="legal")  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="a lock of 0 days cannot be set"):
        ObjectLock(days=0)
    with pytest.raises(LedgerError, match="a lock is for copies"):
        archive(root, older_than_days=1, to=None, delete=True, lock=LOCK)


def test_a_store_that_says_yes_and_locks_nothing_is_found(
    root: Path, server: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some stores take the headers and heed none of them: here what is sent is cut off on its way."""
    fs, options = server
    store = Store(f"s3://{bucket}/x", options, LOCK)
    monkeypatch.setattr(ObjectLock, "headers", lambda self, now: {})
    sent = type(fs).call_s3
    monkeypatch.setattr(
        type(fs), "call_s3", lambda self, what, **rest: None if "put" in what else sent(self, what, **rest)
    )
    store.write("file", b"content")
    with pytest.raises(LedgerError, match="is there, but not locked for 30 days in compliance mode"):
        store.hold("file")
