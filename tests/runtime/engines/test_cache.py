from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rose.runtime.engines.models import CacheError, once

_READ_ONLY = """
mount -n --bind "$1" "$1" && mount -n -o remount,bind,ro "$1"
exec "$2" -c 'import sys; from pathlib import Path; from rose.runtime.engines.models import CacheError, once
def build(folder): (folder / "file").write_text("built")
for name in ("made", "other"):
    try: print(once(Path(sys.argv[1]), name, build).name)
    except CacheError as error: print(error)' "$1"
"""


def _build(folder: Path) -> None:
    (folder / "file").write_text("built")


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    folder = once(tmp_path / "cache", "made", _build)
    (folder / "file").write_text("kept")
    assert (once(tmp_path / "cache", "made", _build) / "file").read_text() == "kept"


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"file/cache has no made and cannot be written \(Not a directory\)"):
        once(tmp_path / "file" / "cache", "made", _build)


def test_a_cache_that_hosts_share_need_not_be_written_to(tmp_path: Path) -> None:
    once(tmp_path, "made", _build)
    run = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", _READ_ONLY, "sh", str(tmp_path), sys.executable],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "made" not in run.stdout and run.returncode:
        pytest.skip(f"this machine has no mount namespaces for its users: {run.stderr.strip()[-200:]}")
    made, refused = run.stdout.splitlines()
    assert made == "made"
    assert refused.startswith(f"cache {tmp_path} has no other and cannot be written (Read-only file system)")
