"""Another user of this host, `nobody`."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UID = 65534

needs_another_user = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can act as another user, and with setpriv"
)


def succeeds(command: str) -> bool:
    other = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "sh", "-c", command]
    return subprocess.run(other, check=False, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode == 0


@contextmanager
def everybodys_folder() -> Iterator[Path]:
    """A folder in memory with the rights of /dev/shm."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder
