"""The plugin inside an owner's serving engine. If the plugin fails, lending ends, but serving continues."""

import logging
import os
import select
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.attachment import Attachment, EngineState, describe, detached_note
from rose.runtime.coserving.hooks.mechanisms import compute_facts, compute_mechanism, memory_mechanism
from rose.runtime.coserving.hooks.telemetry import ServingTelemetry
from rose.runtime.coserving.page import ArbiterPage, Field, PageError, Party
from rose.runtime.coserving.scheduler import SchedulerView, abort_status
from rose.runtime.coserving.settings import PAGE_LINK

logger = logging.getLogger(__name__)

_LOOK_NS = 1_000_000_000  #: How often to look for a missing page and whether the page was replaced.
_WATCH_S = 1.0
ATTACH = "rose_attach"
DETACH = -1  # these numbers release the page; after DETACH agents do not attach the engine again
RELEASE = -2


class ArrivalWatch(threading.Thread):
    """Withdraws credit when a request arrives while the scheduler computes."""

    def __init__(self, file: int, withdraw: Callable[[], None]) -> None:
        super().__init__(name="rose-arrivals", daemon=True)
        self._file, self._withdraw = file, withdraw
        self.taken_in = threading.Event()
        self.ended = False
        self.start()

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        while not self.ended:
            if poll.poll(_WATCH_S * 1000) and not self.ended:
                self.taken_in.clear()
                self._withdraw()
                self.taken_in.wait(_WATCH_S)


class ServingPlugin:
    """The plugin in one scheduler process of serving. Its methods never raise."""

    def __init__(self, scheduler: Any, page: Path | None, refused: str | None) -> None:
        self._scheduler = scheduler
        self._path = page
        self._refused = refused
        self._page: ArbiterPage | None = None
        self._telemetry: ServingTelemetry | None = None
        self._watch: ArrivalWatch | None = None
        self._looked_ns = 0
        self._detached = False
        self._reason: str | None = None

    @property
    def state(self) -> EngineState:
        path = self._path if self._page is None else self._page.path
        return EngineState(
            role="serving",
            pid=os.getpid(),
            model=self._model,
            page=None if path is None else str(path),
            attached=self._page is not None,
            detached=self._detached,
            reason=None if self._page is not None else self._reason or self._refused,
        )

    @property
    def _model(self) -> str:
        arguments = self._scheduler.server_args
        return str(arguments.served_model_name or arguments.model_path)

    def receiving(self) -> None:
        if (telemetry := self._telemetry) is not None:
            self._guarded(telemetry.arriving)

    def received(self) -> None:
        if self._watch is not None:
            self._watch.taken_in.set()
        self._guarded(self._received)

    def begin(self, batch: Any) -> None:
        if (telemetry := self._telemetry) is not None:
            self._guarded(lambda: telemetry.begins(int(self._scheduler.forward_ct) + 1, batch))

    def launched(self, batch: Any) -> None:
        if (telemetry := self._telemetry) is not None:
            self._guarded(lambda: telemetry.launched(int(batch.forward_iter), batch))

    def end(self, batch: Any) -> None:
        if (telemetry := self._telemetry) is not None:
            self._guarded(lambda: telemetry.end(int(batch.forward_iter), batch))

    def aborted(self, request: Any, abort: Any) -> None:
        if (telemetry := self._telemetry) is not None:
            self._guarded(lambda: telemetry.aborted(request, abort_status(abort)))

    def attach(self, number: int) -> None:
        self._guarded(lambda: self._attach(number))

    def _attach(self, number: int) -> None:
        if number == DETACH and self._page is not None:
            with suppress(OSError):  # Before the section is free: finders of a free section read this note.
                detached_note(self._page.path).touch()
        self._let_go()
        self._looked_ns = 0
        self._detached = number == DETACH
        self._path = linked_page(number) if number >= 0 else None
        self._reason = None
        if self._path is None:
            logger.info("ROSE: detached")
        elif self._refused is not None:
            self._look()

    def _received(self) -> None:
        now = monotonic_ns()
        if now - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now
            self._look()
        if self._telemetry is not None:
            self._telemetry.arrived()

    def _look(self) -> None:
        if self._page is not None and self._page.replaced():
            self._let_go()
        if self._page is not None or self._path is None:
            return
        try:
            self._path.stat()
            path = self._path.resolve()
            if self._refused is None:
                self._take(path)
                return
            with closing(ArbiterPage(path)) as page:
                if not page.alive(Party.SERVING):
                    self._describe_refusal(path)
            self._decline(self._refused)
        except FileNotFoundError:
            self._let_go()
            self._decline(f"there is no page at {self._path}")
        except (PageError, OSError) as error:
            self._let_go()
            self._decline(str(error))

    def _take(self, path: Path) -> None:
        self._page = ArbiterPage.attach(path, Party.SERVING)
        view = SchedulerView(self._scheduler)
        self._telemetry = ServingTelemetry(view, self._page)
        if (file := view.arrivals_file) is not None:
            self._watch = ArrivalWatch(file, self._telemetry.withdraw)
        describe(
            path,
            Attachment(
                role="serving",
                pid=os.getpid(),
                model=self._model,
                kv_tokens=view.kv_tokens_total,
                compute_mechanism=compute_mechanism(**compute_facts(self._scheduler, gated=False)),
                memory_mechanism=memory_mechanism(pool=None, leased=False),
            ),
        )
        detached_note(path).unlink(missing_ok=True)
        self._reason = None
        logger.info("ROSE: attached to %s", path)

    def _let_go(self) -> None:
        page, self._page, self._telemetry = self._page, None, None
        if self._watch is not None:
            self._watch.ended, self._watch = True, None
        if page is not None:
            _leave(page)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            logger.exception("ROSE no longer lends this engine; serving continues")
            self._refused = f"the plugin failed in serving: {type(error).__name__}: {error}"
            self._give_up()

    def _give_up(self) -> None:
        page, self._path = self._page, None
        try:
            try:
                if page is not None:
                    page.set(Party.SERVING, Field.BROKEN, 1)
                    self._describe_refusal(page.path)  # Before the section is free: its finders need the reason.
            finally:
                self._let_go()
        except Exception:
            logger.exception("ROSE could not report its failure on its page")

    def _describe_refusal(self, page: Path) -> None:
        describe(page, Attachment(role="serving", pid=os.getpid(), model=self._model, refused=self._refused))

    def _decline(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            logger.info("ROSE: not lending: %s", reason)


def linked_page(number: int) -> Path:
    """Return the path that the link `number` points to, or the link's own path if the link does not exist."""
    link = Path(f"{PAGE_LINK}{number}")
    with suppress(OSError):  # Read, not followed: the kernel may forbid following another user's link.
        return link.readlink()
    return link


def _leave(page: ArbiterPage) -> None:
    """Release serving's section of the page. A rollout step in progress yields, and is then abandoned."""
    now_ns = monotonic_ns()
    page.close_span(Party.SERVING, now_ns)
    page.set(Party.SERVING, Field.CREDIT_NS, 0)
    page.set(Party.SERVING, Field.IN_FLIGHT, 0)
    page.set(Party.SERVING, Field.WANTED_SINCE_NS, now_ns)
    page.close()


def refusal() -> str | None:
    """Return why nothing can be lent beside this engine, or None."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    sizes = {"--tp-size": parallel.tp_size, "--pp-size": parallel.pp_size, "--dp-size": parallel.dp_size}
    many = [f"{name} {size}" for name, size in sizes.items() if size != 1]
    if many:
        return (
            f"serving runs with {' and '.join(many)}: a page stands for one device, and all ranks would have to be "
            "held and let go together"
        )
    return None
