"""Serves the HTTP paths of SGLang, SGLang's router, OpenAI and vLLM."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rose.clock import monotonic_ns
from rose.runtime.scheduling.gateway import openai, sglang
from rose.runtime.scheduling.gateway.http_server import SESSIONS, Client, read
from rose.runtime.scheduling.gateway.origins import FolderOrigins
from rose.runtime.scheduling.gateway.service import Service, may_use, read_version, token_of
from rose.runtime.scheduling.messages import ID_LENGTH_MAX
from rose.runtime.scheduling.refusals import RefusedError, RequestError, error_body
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.status import missing

Handle = Callable[[Request], Awaitable[Response]]
T = TypeVar("T", openai.CompletionRequest, openai.ChatRequest, openai.TokensRequest)
ReadTurns = Callable[[T, Service, Run, str | None], Awaitable[openai.OpenAIAnswer | openai.TokenAnswer]]
_WORKER = "rose"
_CAPABILITIES = (
    *("pause_generation", "continue_generation", "update_weights_from_disk", "pull_weights"),
    *("load_lora_adapter", "flush_cache", "abort_request"),
)
_VERSION_FIELDS = {"model_path", "weight_dir", "weight_version", "version", "load_format", "token_step", "step"}
_UPDATE_FLAGS = {"abort_all_requests", "flush_cache", "is_async", "keep_pause", "torch_empty_cache"}


_COMMANDS = (*_CAPABILITIES, "unload_lora_adapter", "server_info", "model_info", "v1/loads")


class Paths:
    def __init__(self, service: Service) -> None:
        self._service, self._controller = service, service.controller
        self._handles: dict[str, Handle] = {}

    def routes(self, prefix: str = "") -> list[Route]:
        """Return the routes. A prefix with `{run_id}` chooses the run."""
        both = ["GET", "POST"]
        paths: list[tuple[str, Handle, list[str]]] = [
            ("/v1/completions", self._turns(openai.CompletionRequest, openai.read_completion), ["POST"]),
            ("/v1/chat/completions", self._turns(openai.ChatRequest, openai.read_chat), ["POST"]),
            ("/v1/models", self.models, ["GET"]),
            ("/v1/models/{model:path}", self.model, ["GET"]),
            *((path, self.tokenize, ["POST"]) for path in ("/tokenize", "/v1/tokenize")),
            *((path, self.detokenize, ["POST"]) for path in ("/detokenize", "/v1/detokenize")),
            ("/inference/v1/generate", self._turns(openai.TokensRequest, openai.read_tokens), ["POST"]),
            ("/generate", self.generate, ["POST", "PUT"]),
            *((path, self.server_info, ["GET"]) for path in ("/server_info", "/get_server_info")),
            *((path, self.model_info, ["GET"]) for path in ("/model_info", "/get_model_info")),
            *((path, self.ready, ["GET"]) for path in ("/health", "/health_generate", "/ready", "/liveness")),
            ("/get_weight_version", self.weight_version, ["GET"]),
            *((path, self.loads, ["GET"]) for path in ("/v1/loads", "/get_load", "/get_loads")),
            ("/workers", self.workers, both),
            ("/workers/{worker:path}", self.worker, ["GET", "PUT", "DELETE"]),
            ("/flush_cache", self.flush_cache, both),
            ("/reset_prefix_cache", self.reset_prefix_cache, ["POST"]),
            ("/abort_request", self.abort, ["POST"]),
            *((path, self.pause, ["POST"]) for path in ("/pause_generation", "/pause")),
            *((path, self.resume, ["POST"]) for path in ("/continue_generation", "/resume")),
            *((path, self.update, ["POST"]) for path in ("/update_weights_from_disk", "/update_weights")),
            ("/pull_weights", self.pull, ["POST"]),
            *((path, self.load_adapter, ["POST"]) for path in ("/load_lora_adapter", "/v1/load_lora_adapter")),
            *((path, self.unload_adapter, ["POST"]) for path in ("/unload_lora_adapter", "/v1/unload_lora_adapter")),
            *((path, self.rl_workers, ["GET"]) for path in ("/v1/rl/workers", "/v1/rl/workers/{worker:path}")),
            ("/v1/rl/engine/{path:path}", self.rl_engine, both),
        ]
        self._handles |= {path: handle for path, handle, _ in paths}
        return [Route(prefix + path, handle, methods=methods) for path, handle, methods in paths]

    def _turns(self, kind: type[T], read_turns: ReadTurns[T]) -> Handle:
        async def handle(request: Request) -> Response:
            body = kind.model_validate_json(await read(request.receive))
            run = self._service.run_of(request.scope, body.model)
            made = await read_turns(body, self._service, run, _session(request))
            return await _answer(request, body.stream, made.answer, made.events)

        return handle

    async def generate(self, request: Request) -> Response:
        return await self.generate_from(await read(request.receive), request)

    async def generate_from(self, text: bytes, request: Request) -> Response:
        body = _object(text)
        run = self._service.run_of(request.scope, body.get("model"))
        orders, form = await sglang.read(body, self._service, run, _session(request))
        turns = (self._service, run, orders, form)
        return await _answer(request, form.stream, partial(sglang.answer, *turns), partial(sglang.events, *turns))

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": await self._models(request)})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        for model in await self._models(request):
            if model["id"] == name:
                return JSONResponse(model)
        raise RefusedError(404, f"unknown model {name!r}", "model")

    async def _models(self, request: Request) -> list[dict[str, Any]]:
        service = self._service
        runs = [run for run in self._controller.runs if run.is_open and may_use(token_of(request.scope), run)]
        models: list[tuple[str, str | None, int]] = [(name, None, 0) for name in service.models]
        models += [(run.run_id, run.facts.model, run.facts.opened_us // 1_000_000) for run in runs]
        return [
            {
                "id": name,
                "object": "model",
                "owned_by": "rose",
                "created": created,
                "root": model or name,
                "parent": model,
                "max_model_len": await service.context(model or name),
            }
            for name, model, created in models
        ]

    async def tokenize(self, request: Request) -> Response:
        body = openai.TokenizeRequest.model_validate_json(await read(request.receive))
        texts = await self._service.texts(self._service.run_of(request.scope, body.model))
        if body.messages is not None:
            ids = await texts.chat(body.messages, body.tools, **(body.chat_template_kwargs or {}))
        elif body.prompt is not None:
            ids = await texts.encode(body.prompt, special=body.add_special_tokens)
        else:
            raise RequestError("prompt is missing: give a text, or messages")
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": texts.context})

    async def detokenize(self, request: Request) -> Response:
        body = await _json(request)
        run = self._service.run_of(request.scope, body.pop("model", None))
        texts = await self._service.texts(run)
        sglang.check_known(body, frozenset({"tokens", "skip_special_tokens"}))
        ids = await sglang.prompt_ids(body.get("tokens"), "tokens", self._service, run)
        text = texts.decode(ids, special=not body.get("skip_special_tokens", True))
        return JSONResponse({"text": text, "prompt": text})

    async def ready(self, _request: Request) -> Response:
        lacking = missing(self._controller, monotonic_ns())
        answer = {"ready": not lacking, "missing": lacking}
        return JSONResponse(answer, 503, {"Retry-After": "1"}) if lacking else JSONResponse(answer)

    async def server_info(self, request: Request) -> Response:
        info = self._info(request)
        lacking, version = missing(self._controller, monotonic_ns()), info["weight_version"]
        state = {
            "ready": not lacking,
            "sync_state": "waiting" if lacking else "ready",
            "reason": "; ".join(lacking) or None,
            "applied": None if version is None else f"{info['run_id']}/weight_v{int(version):06}",
        }
        sizes = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "ep_size": 1, "enable_memory_saver": False}
        return JSONResponse({**info, **state, **sizes, "internal_states": [], "version": "rose"})

    async def weight_version(self, request: Request) -> Response:
        return JSONResponse({"weight_version": self._info(request)["weight_version"]})

    async def model_info(self, request: Request) -> Response:
        return JSONResponse(self._info(request))

    def _info(self, request: Request) -> dict[str, Any]:
        run = self._service.known_run(request.scope)
        model = run.facts.model if run is not None else next(iter(self._service.models), None)
        version = None if run is None or run.facts.version is None else str(run.facts.version)
        names = dict.fromkeys(("model_path", "tokenizer_path", "served_model_name"), model)
        run_id = None if run is None else run.run_id
        return {**names, "is_generation": True, "weight_version": version, "run_id": run_id}

    async def loads(self, request: Request) -> Response:
        run = self._service.known_run(request.scope)
        turns = 0 if run is None else len(self._controller.loads[run.run_id].turns)
        running = sum(run is not None and item.run_id == run.run_id for _, item in self._controller.workers.running())
        counts = {"num_running_reqs": min(running, turns), "num_waiting_reqs": max(0, turns - running)}
        load = {"dp_rank": 0, **counts, "num_total_reqs": turns}
        return JSONResponse({"timestamp": datetime.now(UTC).isoformat(), "loads": [load]})

    async def workers(self, request: Request) -> Response:
        """List this server as the only worker. POST accepts no other worker."""
        if request.method == "POST":
            body = await _json(request)
            if not str(body.get("url", "")).rstrip("/") == self._url(request):
                raise RequestError(f"url is {str(body.get('url'))[:60]!r}: give {self._url(request)}, the only worker")
            return JSONResponse({"status": "accepted", "worker_id": _WORKER, "url": self._url(request)}, 202)
        stats = {"prefill_count": 0, "decode_count": 0, "regular_count": 1}
        return JSONResponse({"workers": [self._worker(request)], "total": 1, "stats": stats})

    async def worker(self, request: Request) -> Response:
        if request.path_params["worker"] not in (_WORKER, self._url(request)):
            raise RefusedError(404, f"unknown worker {request.path_params['worker']!r}: the only worker is {_WORKER!r}")
        if request.method == "GET":
            return JSONResponse(self._worker(request))
        # A client cannot remove the fleet's engines.
        return JSONResponse({"status": "accepted", "worker_id": _WORKER}, 202)

    def _worker(self, request: Request) -> dict[str, Any]:
        return {
            "id": _WORKER,
            "url": self._url(request),
            "model_id": next(iter(self._service.models), None),
            "worker_type": "regular",
            "is_healthy": not missing(self._controller, monotonic_ns()),
            "load": sum(len(load.turns) for load in self._controller.loads.values()),
        }

    def _url(self, request: Request) -> str:
        run_id = request.path_params.get("run_id")
        return str(request.base_url).rstrip("/") + (f"/runs/{run_id}" if run_id else "")

    async def flush_cache(self, request: Request) -> Response:
        """Return success if the run has no open turn. A flush is not needed: new weights use no old cached prefix."""
        run = self._service.known_run(request.scope)
        if turns := 0 if run is None else len(self._controller.loads[run.run_id].turns):
            raise RefusedError(400, f"the run has {turns} turns: wait until they end")
        return JSONResponse({"success": True, "message": "nothing to flush: no cached prefix outlives its weights"})

    async def reset_prefix_cache(self, _request: Request) -> Response:
        return JSONResponse({})

    async def abort(self, request: Request) -> Response:
        body = await _json(request)
        sglang.check_known(body, frozenset({"rid", "abort_all", "abort_message"}))
        name, all_of_them = body.get("rid"), body.get("abort_all") is True
        if not all_of_them and not (isinstance(name, str) and name):
            raise RequestError(f"rid is {str(name)[:60]!r}: give the `rid` of a request, or abort_all true")
        run = self._service.known_run(request.scope)
        turns = 0 if run is None else self._controller.abort(run.run_id, None if all_of_them else name)
        return JSONResponse({"success": True, "aborted": turns})

    async def pause(self, request: Request) -> Response:
        body = await _json(request)
        mode = body.get("mode") or request.query_params.get("mode") or "abort"
        if mode not in ("abort", "retract", "in_place", "keep", "wait"):
            raise RequestError(f"mode is {str(mode)[:60]!r}: give abort, retract, in_place, keep or wait")
        run = self._service.run_of(request.scope)
        self._controller.pause(run.run_id)
        turns = self._controller.abort(run.run_id) if mode == "abort" else 0
        return JSONResponse({"status": "ok", "message": "generation is paused", "aborted": turns})

    async def resume(self, request: Request) -> Response:
        self._controller.resume(self._service.run_of(request.scope).run_id)
        return JSONResponse({"status": "ok", "message": "generation continues"})

    async def update(self, request: Request) -> Response:
        """Publish a folder of this host as the next version of the run."""
        body = await _json(request)
        sglang.check_known(body, frozenset(_VERSION_FIELDS | _UPDATE_FLAGS))
        if body.get("load_format") not in (None, "auto", "safetensors"):
            raise RequestError(f"load_format is {str(body['load_format'])[:60]!r}: give auto, or leave it out")
        folder = _folder(body, "weight_dir" if "weight_dir" in body else "model_path")
        run, origins = self._publishing(request)
        version = _version(run, body.get("weight_version"))
        if body.get("abort_all_requests") is True:
            self._controller.abort(run.run_id)
        version_published = await origins.publish(run, Path(run.facts.pulled.get(folder, folder)), version)
        answer = {"success": True, "message": f"version {version_published}", "weight_version": str(version_published)}
        return JSONResponse(answer | {"num_paused_requests": 0})

    async def pull(self, request: Request) -> Response:
        """Record the source folder of a local copy. A later `update` that names the copy publishes the source."""
        body = await _json(request)
        sglang.check_known(body, frozenset({"local_checkpoint_dir", "source_dir", "target_version"}))
        copy, source = _folder(body, "local_checkpoint_dir"), _folder(body, "source_dir")
        run, origins = self._publishing(request)
        target = _version(run, body.get("target_version"), "target_version")
        if target is None:
            raise RequestError(f"target_version is {str(body.get('target_version'))[:60]}: give a version's number")
        if target:
            folder = Path(source) / f"weight_v{target:06}"
            if not await asyncio.to_thread(folder.is_dir):
                raise RequestError(f"source_dir has no folder {str(folder)!r}: write it before the pull")
            self._controller.runs.note_pulled(run, copy, str(folder))
        elif run.facts.version is None:
            origins.publish_checkpoint(run)
        return JSONResponse({"success": True, "message": f"recorded version {target}"})

    async def load_adapter(self, request: Request) -> Response:
        """Publish a LoRA adapter, merged into the model's weights, as the next version."""
        body = await _json(request)
        sglang.check_known(body, frozenset({"lora_name", "lora_path", "pinned"}))
        name, folder = _text(body, "lora_name"), _folder(body, "lora_path")
        run, origins = self._publishing(request)
        number = _version(run, name.rpartition("-v")[2], "the version in lora_name")
        version = await origins.publish(run, Path(folder), number)
        self._controller.runs.note_adapters(run, {**run.facts.adapters, name: version})
        message = f"merged into the model's weights as version {version}"
        answer = {"success": True, "error_message": "", "message": message, "loaded_adapters": {name: folder}}
        return JSONResponse(answer | {"weight_version": str(version)})

    async def unload_adapter(self, request: Request) -> Response:
        body = await _json(request)
        sglang.check_known(body, frozenset({"lora_name"}))
        name, run = _text(body, "lora_name"), self._service.run_of(request.scope)
        if name not in run.facts.adapters:
            raise RequestError(f"lora_name is {name[:60]!r}: run {run.run_id!r} has no adapter of this name")
        adapters = {adapter: version for adapter, version in run.facts.adapters.items() if adapter != name}
        self._controller.runs.note_adapters(run, adapters)
        return JSONResponse({"success": True, "error_message": "", "loaded_adapters": adapters})

    def _publishing(self, request: Request) -> tuple[Run, FolderOrigins]:
        self._service.check_files(token_of(request.scope))
        if self._service.origins is None:
            raise RefusedError(501, "this controller cannot publish folders: publish with rose.client")
        return self._service.run_of(request.scope), self._service.origins

    async def rl_workers(self, request: Request) -> Response:
        worker = request.path_params.get("worker")
        if worker not in (None, _WORKER):
            raise RefusedError(404, f"unknown worker {worker!r}: the only worker is {_WORKER!r}")
        info = self._info(request)
        description = self._worker(request) | {
            "engine": "sglang",
            "topology": {"tp_size": 1, "pp_size": 1, "dp_size": 1},
            "weight_version": info["weight_version"],
            "capabilities": list(_CAPABILITIES),
        }
        return JSONResponse(description if worker else {"workers": [description], "total": 1})

    async def rl_engine(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path not in _COMMANDS:
            raise RefusedError(404, f"unknown engine command {path!r}: give {', '.join(_COMMANDS)}")
        answer = await self._handles[f"/{path}"](request)
        result = {"worker_id": _WORKER, "status": answer.status_code, "body": json.loads(bytes(answer.body))}
        return JSONResponse({"results": [result]})


def _version(run: Run, value: object, name: str = "weight_version") -> int | None:
    try:
        version = read_version(value, name)
    except RequestError:
        return None
    newest = run.facts.version
    if version is not None and newest is not None and version < newest:
        why = f"{name} is {value}, and run {run.run_id!r} is at version {newest}"
        raise RefusedError(409, f"{why}: give a higher version, or open another run")
    return version


def _text(body: Mapping[str, Any], name: str) -> str:
    if not (isinstance(text := body.get(name), str) and 0 < len(text) <= ID_LENGTH_MAX):
        raise RequestError(f"{name} is {str(text)[:60]!r}: give a name of at most {ID_LENGTH_MAX} characters")
    return text


def _folder(body: Mapping[str, Any], name: str) -> str:
    if not (isinstance(path := body.get(name), str) and Path(path).is_absolute()):
        raise RequestError(f"{name} is {str(path)[:60]!r}: give the full path of a folder")
    return path


def _session(request: Request) -> str | None:
    return next((value for name in SESSIONS if (value := request.headers.get(name))), None)


async def _json(request: Request) -> dict[str, Any]:
    return _object(await read(request.receive))


def _object(text: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(text or b"{}")  # Unlike `json`, it refuses text that cannot be sent back.
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body is {str(body)[:60]}: give an object")
    return body


async def _answer(
    request: Request,
    stream: bool,
    answer: Callable[[Client], Awaitable[Any]],
    events: Callable[[], AsyncIterator[bytes]],
) -> Response:
    if not stream:
        with Client(request.scope) as client:
            return Response(msgspec.json.encode(await answer(client)), media_type="application/json")
    parts = events()
    try:
        first = await anext(parts)
    except StopAsyncIteration:
        first = b""

    async def lines() -> AsyncIterator[bytes]:
        try:
            yield b"data: " + first + b"\n\n"
            async for event in parts:
                yield b"data: " + event + b"\n\n"
        except RefusedError as error:
            body = error_body(error.status, str(error), error.param, error.kind)
            yield b"data: " + json.dumps(body).encode() + b"\n\n"
        finally:
            await parts.aclose()  # type: ignore[attr-defined]
        yield b"data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
