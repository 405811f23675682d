"""What a sync runs is compiled before the first one."""

import os
import subprocess
import sys

import pytest


@pytest.mark.long
def test_what_was_compiled_once_is_not_compiled_again(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DEBUG_CACHE": "1"}
    command = [sys.executable, "-m", "rose.transfer.compilation"]

    def saved():
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.count("data saved to")

    assert saved() > 0
    assert saved() == 0
