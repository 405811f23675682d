"""The requests of docs/fleet.md, sent as they are written, in their order."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import aiohttp

from tests.runtime.scheduling.stand_ins import beat, call, gateway

DOCUMENT = Path(__file__).parents[3] / "docs" / "fleet.md"


def requests():
    """(method, path, body) of every curl there."""
    for block in re.findall(r"^```sh\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            words = shlex.split(line)
            if words[0] == "curl":
                (url,) = (word for word in words if word.startswith("http"))
                body = words[words.index("-d") + 1] if "-d" in words else None
                method = words[words.index("-X") + 1] if "-X" in words else "POST"
                assert "Authorization: Bearer $ROSE_TOKEN" in words
                yield method, "/" + url.split("/", 3)[3], body


def test_the_requests_of_the_document_are_answered():
    async def scenario():
        opened = None
        async with gateway("token-of-the-tests", model="frozenlake-tiny") as (session, _):
            await beat(session, device_id="serving-0")
            for method, path, body in requests():
                run_id = "" if opened is None else opened["run_id"]
                status, answer = await call(session, method, path.replace("grpo-0123456789ab", run_id), body)
                assert status == 200, (method, path, answer)
                if path == "/runs":
                    opened = answer
            assert opened.keys() == {"run_id", "fence", "version", "step", "url", "expires_s"}
            async with aiohttp.ClientSession() as stranger:
                assert (await call(stranger, "POST", opened["url"] + "/renew", "{}"))[0] == 401

    asyncio.run(scenario())
