"""A small server that takes pages as SGLang with the plugin does."""

import os
import threading
from contextlib import contextmanager
from dataclasses import asdict
from http.server import ThreadingHTTPServer

from rose.runtime.coserving.attachment import EngineState, detached_note
from rose.runtime.coserving.hooks.serving import DETACH, linked_page
from rose.runtime.coserving.page import ArbiterPage, Field, PageError, Party
from tests.runtime.coserving.json_server import JsonHandler


class Owner:
    """`keys` are those of /server_info and /set_internal_state. The page is taken after `looks_after` questions."""

    linked_page = staticmethod(linked_page)

    def __init__(
        self, *, has_plugin=True, role="serving", refused=None, keys=(None, None), looks_after=0, embedded=False
    ):
        self.has_plugin, self.role, self.refused = has_plugin, role, refused
        self.keys, self.looks_after, self.embedded = keys, looks_after, embedded
        self.page, self.path, self.reason, self.numbers = None, None, None, []

    def take(self, number):
        if not self.has_plugin:
            return False
        self.numbers.append(number)
        if number == DETACH and self.page is not None:
            detached_note(self.page.path).touch()
        self.let_go()
        self.path = None if number < 0 else self.linked_page(number)
        self.waits = self.looks_after
        self.look()
        return True

    def look(self):
        if self.path is None or self.page is not None:
            return
        self.waits -= 1
        if self.waits >= 0:
            return
        self.reason = self.refused
        if self.refused is None:
            try:
                self.page = ArbiterPage.attach(self.path.resolve(), Party.SERVING)
                detached_note(self.page.path).unlink(missing_ok=True)
            except FileNotFoundError:
                self.reason = f"there is no page at {self.path}"
            except PageError as error:
                self.reason = str(error)

    def states(self):
        if not self.has_plugin:
            return [{"world_size": 1}]
        self.look()
        path = self.path if self.page is None else self.page.path
        state = EngineState(
            role=self.role,
            pid=os.getpid(),
            model="owned",
            page=None if path is None else str(path),
            attached=self.page is not None,
            detached=self.numbers[-1:] == [DETACH],
            reason=None if self.page is not None else self.reason,
        )
        return [{"world_size": 1, "rose": asdict(state)}]

    def let_go(self):
        self.reason = None
        if self.page is not None:
            # A page takes a section of this process's own for held; an owner's engine is another process.
            self.page.set(Party.SERVING, Field.PID, 0)
            self.page.close()
            self.page = None


@contextmanager
def served(owner, port=0):
    class Handler(JsonHandler):
        def do_GET(self):
            if self.path == "/server_info":
                self.act(owner.keys[0], lambda: {"internal_states": owner.states()})
            else:
                self.answer({})

        def do_POST(self):
            body = self.body()
            if self.path == "/generate":  # Who started it asks for no more than that it answers.
                self.answer({})
            elif owner.embedded:
                self.send_error(404)
            else:
                self.act(owner.keys[1], lambda: [owner.take(body["server_args"]["rose_attach"])])

        def act(self, key, act):
            if key is None or self.headers["Authorization"] == f"Bearer {key}":
                self.answer(act())
            else:
                self.answer({"error": "Unauthorized"}, 401)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        owner.let_go()
