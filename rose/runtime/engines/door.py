"""The HTTP proxy of a rollout engine for other hosts. It checks a token and forwards only `/generate`."""

import asyncio
import errno
import hmac
import json
import os
import sys
import threading
from dataclasses import asdict, dataclass, field

import aiohttp
from aiohttp import web

LOOPBACK = "127.0.0.1"
_VARIABLE = "ROSE_ENGINE_DOOR"
_START_TIMEOUT_S = 30.0
_REQUEST_BYTES_MAX = 64 << 20  # A prompt of a million tokens is some 7 MB.


@dataclass(frozen=True, slots=True)
class Door:
    address: str
    token: str = field(repr=False)


def addresses(door: Door | None) -> list[str]:
    return [LOOPBACK] if door is None else [LOOPBACK, door.address]


def environment(door: Door | None, port: int) -> dict[str, str]:
    return {} if door is None else {_VARIABLE: json.dumps(asdict(door) | {"port": port})}


def open_from_within() -> None:
    """Start the engine's proxy, if any, in the engine's first process. Return once it listens; exit if it cannot."""
    if not (text := os.environ.get(_VARIABLE)):
        return
    facts = json.loads(text)
    door, port = Door(facts["address"], facts["token"]), int(facts["port"])
    listening = threading.Event()
    failed: list[OSError] = []

    def run() -> None:
        try:
            asyncio.run(_serve(door, port, listening))
        except OSError as error:
            failed.append(error)
            listening.set()

    threading.Thread(target=run, name="rose-door", daemon=True).start()
    if not listening.wait(_START_TIMEOUT_S):
        sys.exit(f"the engine's proxy does not listen on {door.address}:{port} after {_START_TIMEOUT_S:.0f} s")
    for error in failed:
        why = "address already in use" if error.errno == errno.EADDRINUSE else str(error)
        sys.exit(f"the engine cannot be reached on {door.address}:{port}: {why}")


async def _serve(door: Door, port: int, listening: threading.Event) -> None:
    url, wanted = f"http://{LOOPBACK}:{port}/generate", f"Bearer {door.token}".encode()
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False) as session:

        async def generate(request: web.Request) -> web.StreamResponse:
            if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), wanted):
                return _refused(401, "send this engine's token, or request turns from the controller")
            try:
                body = await request.read()
                async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                    return await _passed_on(request, answer)
            except aiohttp.ClientError as error:
                return _refused(502, f"the engine does not answer: {error}")

        app = web.Application(client_max_size=_REQUEST_BYTES_MAX)
        app.router.add_post("/generate", generate)
        # A client that hangs up ends its request on the engine too.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, door.address, port).start()
        listening.set()
        await asyncio.Event().wait()


async def _passed_on(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
    if "event-stream" not in headers["Content-Type"]:
        return web.Response(status=answer.status, body=await answer.read(), headers=headers)
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    try:
        async for part in answer.content.iter_any():
            await response.write(part)
    except aiohttp.ClientError:
        # Abort, so that the reader sees a broken stream.
        assert request.transport is not None
        request.transport.abort()
        return response
    await response.write_eof()
    return response


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)
