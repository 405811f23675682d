"""The description of the API that it serves itself, made of what checks the requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_NANO: dict[str, Any] = {"type": ["integer", "null"], "description": "Whole nano-dollars; null: not known."}
_TEXT: dict[str, Any] = {"type": ["string", "null"]}
_ALLOCATION: dict[str, Any] = {
    "type": "object",
    "description": "One allocation. Views other than amortized have some of the amounts only.",
    "properties": {
        "name": {"type": "string"},
        "properties": {"type": "object", "additionalProperties": {"type": "string"}},
        "window": {"type": "object", "properties": {"start": _TEXT, "end": _TEXT}},
        "start": _TEXT,
        "end": _TEXT,
        "ledger": _TEXT,
        "provenance": _TEXT,
        "costBasis": _TEXT,
        "currency": _TEXT,
        "totalCost": {"type": ["string", "null"], "description": "Units of the currency; null: not known."},
        "total_nano": _NANO,
        "cost_nano": _NANO,
        "closed_nano": _NANO,
        "corrections_nano": _NANO,
        "open_nano": _NANO,
        "low_nano": _NANO,
        "high_nano": _NANO,
        "ns": {"type": "integer", "description": "Device time, nanoseconds."},
        "tokens": {"type": "integer"},
        "runs": {"type": "integer"},
        "runs_unknown": {"type": "integer"},
    },
}
_OBJECTS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
_DATA: dict[str, dict[str, Any]] = {
    "/allocation": {"type": "array", "items": {"type": "object", "additionalProperties": _ALLOCATION}},
    "/healthz": {"type": "string"},
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
}
_ERRORS: dict[str, str] = {
    "400": "A parameter is wrong; the message names it and its value.",
    "401": "The token is missing or wrong.",
    "403": "Without a token only this machine is answered.",
    "404": "There is no such path or ledger.",
    "429": "Too many requests are being answered or wait.",
    "503": "A ledger does not verify, or cannot be read or priced.",
    "504": "The answer takes too long.",
}


def document(version: str, queries: dict[str, tuple[str, type[BaseModel] | None]]) -> dict[str, Any]:
    """OpenAPI 3.1 of the paths, each with what it answers and what checks its parameters."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "ROSE: what rollouts cost", "version": version},
        "paths": {path: {"get": _operation(path, about, query)} for path, (about, query) in queries.items()},
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(path: str, about: str, query: type[BaseModel] | None) -> dict[str, Any]:
    if path == "/metrics":
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        properties = {"code": {"type": "integer"}, "data": _DATA.get(path, _OBJECTS), "sets": _OBJECTS}
        shown = properties if path == "/allocation" else {name: properties[name] for name in ("code", "data")}
        content = {"application/json": {"schema": {"type": "object", "properties": shown}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "summary": about,
        "parameters": _parameters(query) if query is not None else [],
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{status: {"description": text, "content": error} for status, text in _ERRORS.items()},
        },
    }


def _parameters(query: type[BaseModel]) -> list[dict[str, Any]]:
    """As the model has them, each with its description beside its schema."""
    properties = query.model_json_schema(by_alias=True)["properties"]
    return [
        {"name": name, "in": "query", "required": False, "description": schema.pop("description", ""), "schema": schema}
        for name, schema in properties.items()
    ]
