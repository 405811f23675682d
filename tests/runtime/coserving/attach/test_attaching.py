import os
import socket
import threading
from pathlib import Path

import pytest

from rose import private_files
from rose.runtime.coserving.attach import attaching
from rose.runtime.coserving.attach.attaching import AttachError, OwnedEngine, PageUse, pages_in_use
from rose.runtime.coserving.attachment import Attachment, describe
from rose.runtime.coserving.hooks.serving import DETACH, RELEASE
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.coserving.settings import PAGE_LINK
from rose.runtime.engines.ports import free_port
from tests.runtime.coserving.owned_server import Owner, served
from tests.runtime.coserving.parties import OtherParty


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(attaching, "FOLDERS", (tmp_path,))
    private_files.make(tmp_path / "rose-run")
    page = ArbiterPage.create(tmp_path / "rose-run" / "d" / "page")
    yield page
    page.close()


@pytest.fixture
def attach(tmp_path, page):
    def attach(owner, path=None, **more):
        with served(owner) as url:
            return OwnedEngine(url).attach(path or page.path, **more)

    return attach


def test_it_waits_until_the_engine_has_the_section(attach, page):
    owner, waits = Owner(looks_after=3), []
    state = attach(owner, waiting=lambda: waits.append(page.alive(Party.SERVING)))
    assert (state.attached, state.page) == (True, str(page.path))
    assert waits == [False, False]


def test_an_engine_that_has_the_page_is_not_told_again(page):
    owner = Owner()
    with served(owner) as url:
        engine = OwnedEngine(url)
        engine.attach(page.path)
        assert engine.attach(page.path).attached
        (number,) = owner.numbers
        assert not Path(f"{PAGE_LINK}{number}").is_symlink()
        assert engine.detach().page == str(page.path)
        assert engine.state().detached
        assert not page.alive(Party.SERVING)
        assert owner.numbers[-1] == DETACH


@pytest.mark.parametrize(
    ("owner", "why"),
    [
        ({"has_plugin": False}, "without ROSE's plugin: install rose-serving"),
        ({"role": "rollout"}, "is a rollout engine of ROSE's"),
        ({"refused": "serving runs with --tp-size 2"}, "does not attach to .*: serving runs with --tp-size 2"),
        ({"keys": ("a", "b")}, "asks for a key: .*--token"),
        ({"embedded": True}, "set ROSE_PLUGIN_PAGE in its unit file"),
        ({"looks_after": 10**6}, r"has not attached to .*/page: "),
    ],
)
def test_why_an_engine_is_not_attached_is_said_and_it_is_left_with_no_page(attach, page, owner, why):
    owned = Owner(**owner)
    with pytest.raises(AttachError, match=why):
        attach(owned, timeout_s=0.3)
    assert not page.alive(Party.SERVING)
    assert owned.numbers[1:] in ([], [RELEASE])
    assert not any(Path(f"{PAGE_LINK}{number}").is_symlink() for number in owned.numbers)


def test_a_server_with_two_keys_is_attached_with_the_one_that_changes_settings(page):
    with served(Owner(keys=("a", "b"))) as url:
        assert OwnedEngine(url, "b").attach(page.path) is None
        assert page.alive(Party.SERVING)
        with pytest.raises(AttachError, match="asks for a key"):
            OwnedEngine(url, "a").detach()
        OwnedEngine(url, "b").detach()
        assert not page.alive(Party.SERVING)


def test_an_engine_elsewhere_does_not_see_the_page(attach, page):
    class Elsewhere(Owner):
        linked_page = staticmethod(lambda number: Path(f"/dev/shm/of-its-own/{number}"))

    with pytest.raises(AttachError, match=r"as the engine sees it\. It has to run on this host"):
        attach(Elsewhere())


def test_no_server_and_a_server_of_something_else(page):
    with pytest.raises(AttachError, match=r"no SGLang server answers at .*refused"):
        OwnedEngine(f"http://127.0.0.1:{free_port()}").attach(page.path)
    owner = Owner()
    owner.states = list
    with served(owner) as url, pytest.raises(AttachError, match="not an SGLang server of a tested version"):
        OwnedEngine(url).attach(page.path)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", "no SGLang server answers at"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "no SGLang server answers at"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 100\r\n\r\nno", "answers 500"),
    ],
    ids=["other protocol", "cut off", "cut off failure"],
)
def test_what_speaks_no_http_or_ends_in_the_middle_of_it_is_no_server(page, answer, why):
    def serve(listening):
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=[listening], daemon=True).start()
        engine = OwnedEngine(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(AttachError, match=why):
            engine.attach(page.path)
        listening.shutdown(socket.SHUT_RDWR)


def test_a_page_that_is_none(attach, page, tmp_path):
    owner = Owner()
    with pytest.raises(AttachError, match=r"no page at .*/none: .* `rose up`"):
        attach(owner, tmp_path / "none")
    with pytest.raises(AttachError, match="give the path of a page"):
        attach(owner, page.path.parent)
    (tmp_path / "short").touch(0o600)
    with pytest.raises(AttachError, match="not an arbiter page of this version"):
        attach(owner, tmp_path / "short")
    assert owner.numbers == []


def test_two_engines_do_not_take_one_page(attach, page):
    owner = Owner()
    with OtherParty(page.path, Party.SERVING) as first:
        with pytest.raises(AttachError, match=f"another serving engine, pid {first.pid}, has {page.path}"):
            attach(owner)
        assert owner.numbers == []
        assert page.alive(Party.SERVING)
    attach(owner)


def test_an_engine_is_not_taken_from_an_agent_at_work(page, tmp_path):
    other = ArbiterPage.create(tmp_path / "rose-other" / "d" / "page")
    with served(Owner()) as url:
        engine = OwnedEngine(url)
        engine.attach(page.path)
        with pytest.raises(AttachError, match=f"is attached to {page.path}, whose agent is at work"):
            engine.attach(other.path)
        page.close()  # as when its agent is killed
        assert engine.attach(other.path).page == str(other.path)
    other.close()


def test_pages_are_listed_with_who_has_them(page, tmp_path):
    (use,) = pages_in_use()
    assert use == PageUse(page=str(page.path), agent=True, serving_pid=None)
    describe(page.path, Attachment(role="serving", pid=1, refused="for a reason"))
    assert pages_in_use()[0].refused == "for a reason"
    with OtherParty(page.path, Party.SERVING) as engine:
        assert pages_in_use() == [PageUse(page=str(page.path), agent=True, serving_pid=engine.pid)]
        describe(page.path, Attachment(role="serving", pid=engine.pid, model="m"))
        assert pages_in_use()[0].model == "m"
    page.close()
    assert pages_in_use() == [PageUse(page=str(page.path), agent=False, serving_pid=None)]
    os.truncate(page.path, 8)
    assert "not an arbiter page" in pages_in_use()[0].refused
