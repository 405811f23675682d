import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rose.transfer.package.manifest import index_bytes
from rose.transfer.wire.origin import BrokenError, HttpOrigin, open_origin
from tests.transfer.served import until

#: Far longer than a test may take.
TIMEOUT_S = 600.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server


def origin_at(server: socket.socket, scheme: str = "http") -> HttpOrigin:
    origin = open_origin(f"{scheme}://127.0.0.1:{server.getsockname()[1]}", None, timeout_s=TIMEOUT_S)
    assert isinstance(origin, HttpOrigin)
    return origin


def interrupted(origin: HttpOrigin, waits: threading.Event) -> None:
    """Ask, and interrupt once `waits` is set and the connection is there; what was asked must break off."""

    def interrupt() -> None:
        waits.wait()
        until(lambda: bool(origin.connections.open))
        origin.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(BrokenError):
        origin.packages()
    thread.join()
    origin.close()


def test_a_connection_that_is_just_being_made_is_broken_off(listener: socket.socket) -> None:
    # One fills the queue of those that nobody accepted, so that the next is answered by nobody.
    with socket.create_connection(listener.getsockname()):
        waits = threading.Event()
        waits.set()
        interrupted(origin_at(listener), waits)


def test_a_handshake_that_nobody_answers_is_broken_off(listener: socket.socket) -> None:
    waits = threading.Event()

    def accept() -> None:
        connection, _ = listener.accept()
        connection.recv(1)  # of the client's first message
        waits.set()
        stack.enter_context(connection)

    with ExitStack() as stack:
        thread = threading.Thread(target=accept)
        thread.start()
        interrupted(origin_at(listener, "https"), waits)
        thread.join()


def test_a_kept_connection_that_is_broken_off_is_not_made_again(listener: socket.socket) -> None:
    waits, nothing = threading.Event(), index_bytes([])

    def answer_once() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(nothing), nothing))
            connection.recv(1 << 16)
            waits.set()
            connection.recv(1)

    thread = threading.Thread(target=answer_once)
    thread.start()
    origin = origin_at(listener)
    assert origin.packages() == []
    interrupted(origin, waits)
    thread.join()


def test_nothing_is_asked_after_an_interrupt(listener: socket.socket) -> None:
    origin = origin_at(listener)
    origin.interrupt()
    with pytest.raises(BrokenError, match="interrupted"):
        origin.packages()
    listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        listener.accept()
