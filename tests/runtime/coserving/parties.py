"""A party of a page in its own process."""

import multiprocessing
from dataclasses import replace

from rose.runtime.coserving.attachment import Attachment, describe
from rose.runtime.coserving.page import ArbiterPage, CutRecord, Field, Party, Span, SpanRecord
from rose.runtime.policy.slack import Hold
from tests.runtime.loads import IDLE

#: Forked from a process that has all of it loaded: a fresh one takes a second or two.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def _serve(connection, path, me):
    page = ArbiterPage.create(path) if me is Party.AGENT else ArbiterPage.attach(path, me)
    names = {"page": page, "path": path, "me": me, "load": replace(IDLE, largest_prefill_ns=1, usual_prefill_ns=1)}
    for known in (Attachment, ArbiterPage, CutRecord, Field, Party, Span, SpanRecord, Hold, replace, describe):
        names[known.__name__] = known
    connection.send("attached")
    while True:
        try:
            line = connection.recv()
        except EOFError:
            return
        exec(line, names)
        connection.send("done")


class OtherParty:
    """`do` runs Python there that uses `page` and `load`."""

    def __init__(self, path, party):
        self._connection, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, path, party), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid
        assert self._connection.recv() == "attached"

    def do(self, line):
        self._connection.send(line)
        assert self._connection.recv() == "done"

    def kill(self):
        self._process.kill()
        self._process.join()
        self._connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
