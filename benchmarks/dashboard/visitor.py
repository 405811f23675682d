"""A visitor of the dashboard without a browser: cookies, redirects, and Streamlit's WebSocket messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

WAIT_S = 60


@dataclass
class Screen:
    texts: list[str] = field(default_factory=list)
    buttons: dict[str, str] = field(default_factory=dict)  #: Ids of buttons by their labels.
    #: Ids of files to download, by the labels of their buttons.
    downloads: dict[str, str] = field(default_factory=dict)
    menu: list[str] = field(default_factory=list)
    redirect: str = ""
    session: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


class Visitor:
    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, follow_redirects=False, timeout=WAIT_S)

    def open(self, page: str = "", query: str = "") -> Screen:
        with self._connected() as socket:
            return _run(socket, _rerun(page, query))

    def click(self, label: str, page: str = "") -> Screen:
        with self._connected() as socket:
            button = _run(socket, _rerun(page, "")).buttons[label]
            message = _rerun(page, "")
            message.rerun_script.widget_states.widgets.add(id=button, trigger_value=True)
            return _run(socket, message)

    def download(self, label: str, page: str = "") -> bytes | None:
        """Return the file behind a button; None if it was refused."""
        with self._connected() as socket:
            message = BackMsg()
            message.backend_operation_request.request_id = "one"
            screen = _run(socket, _rerun(page, ""))
            message.backend_operation_request.session_id = screen.session
            message.backend_operation_request.deferred_file.file_id = screen.downloads[label]
            socket.send(message.SerializeToString())
            for answer in _messages(socket):
                if answer.WhichOneof("type") == "backend_operation_response":
                    response = answer.backend_operation_response
                    url = response.deferred_file.url
                    return self.http.get(url).content if url else None
        return None

    def log_in(self) -> httpx.Response:
        return self.follow(self.click("Log in").redirect)

    def follow(self, address: str) -> httpx.Response:
        for _ in range(8):
            response = self.http.get(address)
            address = response.headers.get("Location", "")
            if not address or address == "/":
                return response
        raise AssertionError(f"redirected without end, last to {address}")

    @contextmanager
    def _connected(self) -> Iterator[ClientConnection]:
        """Yield a session; the cookie against forged requests is sent back as the page's script does."""
        self.http.get("/_stcore/health")
        self.http.get("/_stcore/host-config")
        parts = urlsplit(self.url)
        token = self.http.cookies.get("_streamlit_xsrf") or ""
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.http.cookies.jar)
        with connect(
            f"ws://{parts.netloc}/_stcore/stream",
            origin=Origin(self.url),
            subprotocols=[Subprotocol(name) for name in ("streamlit", token) if name],
            additional_headers={"Cookie": cookies},
            max_size=None,
        ) as socket:
            yield socket


def _rerun(page: str, query: str) -> BackMsg:
    message = BackMsg()
    message.rerun_script.query_string = query
    message.rerun_script.page_name = page
    return message


def _messages(socket: ClientConnection) -> Iterator[ForwardMsg]:
    while True:
        message = ForwardMsg()
        message.ParseFromString(socket.recv(timeout=WAIT_S, decode=False))
        yield message


def _run(socket: ClientConnection, message: BackMsg) -> Screen:
    socket.send(message.SerializeToString())
    screen = Screen()
    for answer in _messages(socket):
        kind = answer.WhichOneof("type")
        if kind == "new_session":
            screen.session = answer.new_session.initialize.session_id
        elif kind == "auth_redirect":
            screen.redirect = answer.auth_redirect.url
        elif kind == "navigation":
            screen.menu = [page.page_name for page in answer.navigation.app_pages if not page.is_hidden]
        elif kind == "delta":
            _add(screen, answer.delta.new_element)
        elif kind == "script_finished" and answer.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
            return screen
    return screen


def _add(screen: Screen, element: Any) -> None:
    kind = element.WhichOneof("type")
    if kind == "button":
        screen.buttons[element.button.label] = element.button.id
    elif kind == "download_button":
        screen.downloads[element.download_button.label] = element.download_button.deferred_file_id
    elif kind in ("text", "markdown", "heading", "alert"):
        screen.texts.append(getattr(element, kind).body)
