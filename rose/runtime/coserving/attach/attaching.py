"""Attaches a running engine to an arbiter page, and detaches it, through SGLang's HTTP server."""

import http.client
import secrets
import tempfile
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rose.errors import UserError
from rose.http_calls import ask_json
from rose.private_files import is_private
from rose.runtime.coserving.attachment import STATE, EngineState, described
from rose.runtime.coserving.hooks.serving import ATTACH, DETACH, RELEASE
from rose.runtime.coserving.page import ArbiterPage, Field, PageError, Party, page_users
from rose.runtime.coserving.settings import PAGE_LINK

TIMEOUT_S = 60.0  #: A scheduler answers between two steps, and a step can be a long prefill.
ANSWER_TIMEOUT_S = 15.0
_POLL_S = 0.1
_NUMBER_BITS = 52  # a 64-bit float holds such a number exactly
FOLDERS = tuple(dict.fromkeys((Path("/dev/shm"), Path(tempfile.gettempdir()))))


class AttachError(UserError):
    """The engine could not be attached or released. The engine serves as before."""

    exit_code: ClassVar[int] = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PageUse:
    page: str
    agent: bool = False
    serving_pid: int | None = None
    model: str = ""
    refused: str | None = None  # Why an engine did not take the page.


class OwnedEngine:
    """A serving engine that somebody else started, and the key to its server. Methods raise AttachError."""

    def __init__(self, url: str, token: str | None = None, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.url, self._token, self._answer_timeout_s = url.rstrip("/"), token, answer_timeout_s

    def state(self) -> EngineState | None:
        """Return the engine's state, or None if the server does not let this key read the state."""
        try:
            answer = self._call("/server_info")
        except _KeyRefusedError:
            return None
        states = answer.get("internal_states") if isinstance(answer, dict) else None
        if not isinstance(states, list) or not states:
            raise AttachError(f"{self.url} is not an SGLang server of a tested version: it has no /server_info")
        state = EngineState.from_message(states[0].get(STATE)) if isinstance(states[0], dict) else None
        if state is None:
            raise AttachError(
                f"the SGLang server at {self.url} runs without ROSE's plugin: install rose-serving beside its SGLang "
                "and start it without ROSE_PLUGIN_ROLE=off"
            )
        if state.role != "serving":
            raise AttachError(f"{self.url} is a rollout engine of ROSE's: give the serving engine's URL")
        return state

    def attach(
        self, page: Path, waiting: Callable[[], None] = lambda: None, timeout_s: float = TIMEOUT_S
    ) -> EngineState | None:
        """Attach the engine to `page`. Return its state, or None if this key may not read the state. `waiting` is
        called during the wait and may raise. After an error, the engine has no page."""
        page = page.resolve()
        with closing(_opened(page)) as view:
            state = self.state()
            if state is not None and state.attached and state.page is not None:
                if _same(state.page, page):
                    return state
                if _use(Path(state.page)).agent:
                    raise AttachError(
                        f"the engine at {self.url} is attached to {state.page}, whose agent is at work: first "
                        f"detach the engine, then attach it to {page}"
                    )
            if view.alive(Party.SERVING):
                pid = view.get(Party.SERVING, Field.PID)
                raise AttachError(f"another serving engine, pid {pid}, has {page}: detach or stop it first")
            try:
                with _link(page) as number:
                    self._set(number)
                return self._wait(view, waiting, time.monotonic() + timeout_s)
            except BaseException:
                with suppress(AttachError):
                    self._set(RELEASE)
                raise

    def detach(self, *, by_owner: bool = True) -> EngineState | None:
        """Detach the engine, and return its former state. If `by_owner`, no running agent attaches it again."""
        state = self.state()
        self._set(DETACH if by_owner else RELEASE)
        return state

    def _set(self, number: int) -> None:
        taken = self._call("/set_internal_state", {"server_args": {ATTACH: number}})
        if not isinstance(taken, list) or not taken or not all(taken):
            raise AttachError(
                f"serving at {self.url} cannot attach to a page (answer: {taken}): install rose-serving beside its "
                "SGLang and start it without ROSE_PLUGIN_ROLE=off"
            )

    def _wait(self, view: ArbiterPage, waiting: Callable[[], None], deadline: float) -> EngineState | None:
        while True:
            state = self.state()
            if view.alive(Party.SERVING) and (state is None or state.attached):
                return state
            if state is not None and (reason := state.reason) is not None:
                if reason == f"there is no page at {state.page}":
                    reason += (
                        ", as the engine sees it. It has to run on this host, and in a container with the host's "
                        "/dev/shm"
                    )
                raise AttachError(f"the engine at {self.url} does not attach to {view.path}: {reason}")
            if time.monotonic() >= deadline:
                raise AttachError(
                    f"the engine at {self.url} has not attached to {view.path}: see the lines with ROSE in its log"
                )
            waiting()
            time.sleep(_POLL_S)

    def _call(self, path: str, body: object = None) -> Any:
        try:
            return ask_json(self.url + path, body, self._token or None, self._answer_timeout_s)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise _KeyRefusedError(
                    f"the server at {self.url} asks for a key: give its --admin-api-key (or, without one, its "
                    "--api-key) as --token or in ROSE_SERVING_TOKEN"
                ) from None
            if error.code == 404 and body is not None:
                raise AttachError(
                    f"the server at {self.url} has no {path}. If it is SGLang's embedded server "
                    "(SGLANG_RUST_SERVER), set ROSE_PLUGIN_PAGE in its unit file, and start it again"
                ) from None
            why = "no reason"
            with suppress(OSError, http.client.HTTPException):
                why = error.read().decode(errors="replace").strip()[:200]
            raise AttachError(f"{self.url}{path} answers {error.code} ({why}): is it an SGLang server?") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)  # HTTPException: the answer is not HTTP, or was cut off.
            reason = getattr(reason, "strerror", None) or reason
            raise AttachError(
                f"no SGLang server answers at {self.url} ({reason}): start it, or correct the URL"
            ) from None


class _KeyRefusedError(AttachError):
    pass


@contextmanager
def _link(page: Path) -> Iterator[int]:
    number = secrets.randbits(_NUMBER_BITS)
    link = Path(f"{PAGE_LINK}{number}")
    try:
        link.symlink_to(page)
    except OSError as error:
        raise AttachError(f"cannot make the link {link}, by which the engine finds {page} ({error.strerror})") from None
    try:
        yield number
    finally:
        link.unlink(missing_ok=True)


def pages_in_use() -> list[PageUse]:
    """Return the pages on this host that belong to this user or to the user in `ROSE_PAGE_USER`."""
    users = page_users()
    fleets = [fleet for folder in FOLDERS for fleet in sorted(folder.glob("rose-*")) if is_private(fleet, users)]
    return [_use(path) for fleet in fleets for path in sorted(fleet.glob("*/page"))]


def has_engine(page: Path) -> bool:
    return _use(page).serving_pid is not None


def _use(path: Path) -> PageUse:
    try:
        view = ArbiterPage(path)
    except (PageError, OSError) as error:
        return PageUse(page=str(path), refused=str(error))
    with closing(view):
        pid = view.get(Party.SERVING, Field.PID) if view.alive(Party.SERVING) else None
        use = PageUse(page=str(path), agent=view.alive(Party.AGENT), serving_pid=pid)
        note = described(path, "serving")
        if note is None or (note.refused is None if pid is None else note.pid != pid):
            return use
        return replace(use, model=note.model, refused=note.refused)


def _opened(page: Path) -> ArbiterPage:
    try:
        return ArbiterPage(page)
    except FileNotFoundError:
        raise AttachError(
            f"there is no page at {page}: a device's agent creates it during `rose up`. `rose attach` lists this "
            "host's pages"
        ) from None
    except PageError as error:
        raise AttachError(str(error)) from None
    except OSError as error:
        raise AttachError(f"{page} cannot be used as a page ({error.strerror}): give the path of a page") from None


def _same(text: str, page: Path) -> bool:
    try:
        return page.samefile(text)
    except OSError:
        return False
