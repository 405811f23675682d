"""How the gateway answers: JSON, errors as `{"error": ...}`."""

from __future__ import annotations

from aiohttp import web
from pydantic import BaseModel


def message(body: BaseModel) -> web.Response:
    return web.Response(text=body.model_dump_json(), content_type="application/json")


def done() -> web.Response:
    """There is nothing to say."""
    return web.json_response({})


def failure(status: int, error: str) -> web.Response:
    return web.json_response({"error": error}, status=status)
