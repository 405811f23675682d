"""An owner's engine is a small server here, which takes pages as SGLang with the plugin does."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rose.runtime import serving as serving_module
from rose.runtime.cluster import DeploymentError
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.coserving.serving import DETACH
from rose.runtime.engines.sglang import free_port
from rose.runtime.serving import ServingDevice, ServingEngines, answers


class Owner:
    """Serves; takes the page of a number from `pages`, as the plugin does."""

    def __init__(self, pages, *, knows_pages=True):
        self.pages, self.knows_pages = pages, knows_pages
        self.page, self.numbers = None, []

    def take(self, number):
        if not self.knows_pages:
            return False
        self.numbers.append(number)
        self.let_go()
        if number != DETACH:
            self.page = ArbiterPage.attach((self.pages / str(number)).resolve(), Party.SERVING)
        return True

    def let_go(self):
        if self.page is not None:
            # A page takes a section of this process's own for held; an owner's engine is another process.
            self.page.set(Party.SERVING, Field.PID, 0)
            self.page.close()
            self.page = None


@contextmanager
def served(owner):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps([owner.take(body["server_args"]["rose_attach"])]).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        owner.let_go()


@pytest.fixture
def page(tmp_path):
    with_agent = ArbiterPage.create(tmp_path / "device" / "page")
    yield with_agent
    with_agent.close()


def engines(page, url, pages):
    device = ServingDevice(device_id="d", engine_id="d-serving", url=url, page=page.path, spec=None)
    return ServingEngines([device], pages)


def test_an_owner_s_engine_is_attached_and_let_go_and_goes_on(page, tmp_path):
    owner = Owner(tmp_path / "pages")
    with served(owner) as url:
        assert answers(url)
        lent = engines(page, url, owner.pages)
        lent.launch()
        lent.wait_ready(lambda: None)
        lent.check()  # before there is anything to attach to
        lent.attach()
        assert page.alive(Party.SERVING)
        lent.stop()
        assert owner.numbers == [page.inode, DETACH]
        assert answers(url)


def test_an_engine_that_its_owner_started_again_is_attached_again(page, tmp_path, monkeypatch):
    monkeypatch.setattr(serving_module, "_LOOK_S", 0.0)
    owner = Owner(tmp_path / "pages")
    with served(owner) as url:
        lent = engines(page, url, owner.pages)
        lent.attach()
        lent.check()
        assert len(owner.numbers) == 1
        owner.let_go()
        lent.check()
        assert len(owner.numbers) == 2
        assert page.alive(Party.SERVING)


def test_an_engine_that_knows_no_pages_is_named_with_the_way_out(page, tmp_path):
    with served(Owner(tmp_path / "pages", knows_pages=False)) as url:
        with pytest.raises(DeploymentError, match=f"{url} cannot be lent beside .*install rose beside its SGLang"):
            engines(page, url, tmp_path / "pages").attach()


def test_an_engine_that_is_away_is_an_error_at_first_and_waited_for_later(page, tmp_path, monkeypatch):
    monkeypatch.setattr(serving_module, "_LOOK_S", 0.0)
    url = f"http://127.0.0.1:{free_port()}"
    assert not answers(url)
    lent = engines(page, url, tmp_path / "pages")
    with pytest.raises(DeploymentError, match="does not answer"):
        lent.attach()
    lent.check()
    lent.stop()
