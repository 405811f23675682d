"""A party of a page in a process of its own: what an engine is to an agent."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

_SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from rose.runtime.coserving.attach.attachment import Attachment, describe
from rose.runtime.coserving.page import ArbiterPage, CutRecord, Field, Party, Span, SpanRecord
from rose.runtime.policy.slack import Hold, ServingLoad
path, me = Path(sys.argv[1]), Party(int(sys.argv[2]))
page = ArbiterPage.attach(path, me)
load = ServingLoad(
    wanted=False, waiting=0, waiting_prefill_ns=0, earliest_arrival_ns=0, running=0, oldest_token_ns=0, decode_ns=0,
    largest_prefill_ns=1, usual_prefill_ns=1, regret_room_ns=0, worked_ns=0, finished=0, late_alone=0,
    late_by_lending=0,
)
print(page.get(me, Field.PID), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class OtherParty:
    """Attached to the page at `path` from the start; `do` runs lines of Python there that use `page` and `load`."""

    def __init__(self, path, party):
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(path), str(int(party))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = int(self._process.stdout.readline())

    def do(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def kill(self):
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
