"""Writes a trainer's working time to the device's page, as spans of the kind `train`."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rose.clock import monotonic_ns
from rose.errors import UserError, did_you_mean
from rose.runtime.coserving.page import ArbiterPage, PageError, Party, SectionHeldError, Span


class NoPageError(UserError):
    """The device has no page on this host."""


class TrainTime:
    """Writes spans to the page `path` (None: nowhere). Raises NoPageError, or UserError if a trainer uses the page."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._page = None if path is None else _attached(path)

    @contextmanager
    def span(self) -> Iterator[None]:
        if (page := self._present()) is None:
            yield
            return
        page.open_span(Party.TRAINER, Span.TRAIN, monotonic_ns())
        try:
            yield
        finally:
            page.close_span(Party.TRAINER, monotonic_ns())

    def _present(self) -> ArbiterPage | None:
        if self._page is not None and self._page.replaced():
            self._page.close()
            self._page = None
        if self._page is None and self._path is not None:
            with suppress(NoPageError):
                self._page = _attached(self._path)
        return self._page


def _attached(path: Path) -> ArbiterPage:
    try:
        return ArbiterPage.attach(path, Party.TRAINER)
    except SectionHeldError as error:
        raise UserError(f"another trainer works on this device ({error}): end it, or use another device") from None
    except (PageError, FileNotFoundError) as error:
        raise NoPageError(f"no agent has this device now ({error}): see `rose status`") from None


def page_of(device_id: str) -> Path:
    """Return the page of a device with an agent on this host. Raises NoPageError."""
    from rose.runtime.coserving.attach.attaching import pages_in_use

    pages = [Path(use.page) for use in pages_in_use() if use.agent]
    matches = [page for page in pages if page.parent.name == device_id]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise NoPageError(f"{len(matches)} fleets here have a device {device_id!r}: {', '.join(map(str, matches))}")
    near = did_you_mean(device_id, {page.parent.name for page in pages})
    raise NoPageError(f"no agent on this host has device {device_id!r}{near}")
