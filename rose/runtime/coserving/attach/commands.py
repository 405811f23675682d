"""The commands `rose attach` and `rose detach`: they connect an owner's running SGLang to the page of its device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.errors import UserError
from rose.terminal import echo, user_errors

if TYPE_CHECKING:
    from rose.runtime.coserving.attach.attaching import PageUse
    from rose.runtime.coserving.attachment import EngineState

TokenOption = Annotated[
    str | None, typer.Option(envvar="ROSE_SERVING_TOKEN", help="The server's --admin-api-key, or its --api-key.")
]


def attach_command(
    url: Annotated[str | None, typer.Option(help="The SGLang server's URL, such as http://127.0.0.1:30000.")] = None,
    page: Annotated[Path | None, typer.Option(help="The page of the device that the server runs on.")] = None,
    token: TokenOption = None,
    timeout: Annotated[float, typer.Option(min=1, help="Longest wait for the engine, seconds.")] = 60.0,
) -> None:
    """Attach a running SGLang server to a device's page. Without --page, list the pages and attached servers."""
    from rose.runtime.coserving.attach.attaching import OwnedEngine, pages_in_use

    with user_errors():
        if page is not None:
            if url is None:
                raise UserError("--page needs --url: give the URL of the server to attach")
            OwnedEngine(url, token).attach(page, timeout_s=timeout)
            echo(f"attached {url} to {page}")
        elif url is not None:
            echo(f"{url}: {_engine_text(OwnedEngine(url, token).state())}")
        elif pages := pages_in_use():
            echo(*(f"{use.page}: {_page_text(use)}" for use in pages))
        else:
            echo("this user has no page on this host: `rose up` makes a page for each device")


def detach_command(
    url: Annotated[str, typer.Option(help="The SGLang server's URL, such as http://127.0.0.1:30000.")],
    token: TokenOption = None,
) -> None:
    """Detach an SGLang server. The server continues to serve, and its lease ends at once."""
    from rose.runtime.coserving.attach.attaching import OwnedEngine

    with user_errors():
        before = OwnedEngine(url, token).detach()
    page = None if before is None or not before.attached else before.page
    echo(f"detached {url}" + ("" if before is None else f" from {page}" if page else ": it had no page"))


def _engine_text(state: EngineState | None) -> str:
    if state is None:
        return "the server does not show its state to this key"
    if state.attached:
        return f"attached to {state.page}"
    if state.detached:
        return "detached"
    return "not attached" if state.reason is None else f"not attached: {state.reason}"


def _page_text(use: PageUse) -> str:
    agent = "agent at work" if use.agent else "no agent"
    if use.serving_pid is None:
        return f"{agent}, no serving engine" + ("" if use.refused is None else f" ({use.refused})")
    return f"{agent}, serving engine pid {use.serving_pid}" + (f" of {use.model}" if use.model else "")
