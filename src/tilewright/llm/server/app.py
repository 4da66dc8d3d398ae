"""`application`: the ASGI application, which maps paths to handlers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ..chat_page import page_parts, page_text
from ..speech.vocabulary import Task
from .adapters import LoadRequest, UnloadRequest, load_adapter, unload_adapter
from .audio import audio, transcriber_of
from .audio import parsed as audio_form
from .chat import Chat, chat
from .completions import TextCompletion, completion, embeddings
from .errors import ApiError, json_response
from .hosts import Hosts
from .limits import key_of, read_body
from .messages import CountRequest, Messages, MessagesRequest, count_tokens, error_body, messages
from .model_loading import LoadModelRequest, UnloadModelRequest, load_model, unload_model
from .models import Models, ServedModel
from .protocol import ChatRequest, CompletionRequest, EmbeddingRequest, RequestT, ResponsesRequest, parse
from .ranking import RerankRequest, ScoreRequest, rerank, score
from .responses import Responses, ResponseStore, responses
from .service import Service
from .streaming import EventStream, while_connected
from .tokens import DetokenizeRequest, TokenizeRequest, detokenize, tokenize

_log = logging.getLogger("tilewright.server")
_STORED_BYTES = 64 << 20  # bytes of responses kept for previous_response_id; more allow longer and more chats

_PAGE_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page states the rest of its policy itself
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

_SPAN = "tilewright.span"
"""The key of a request's span in its scope."""
_TAKEN = "tilewright.model"
"""The key, in a request's scope, of the model that it has taken."""
_LEFT = 499
"""nginx's status for a connection that the client has closed; nobody reads it."""
_OPERATIONS: dict[type, str] = {
    ChatRequest: "chat",
    MessagesRequest: "chat",
    ResponsesRequest: "chat",
    CompletionRequest: "text_completion",
    EmbeddingRequest: "embeddings",
    RerankRequest: "rerank",
    ScoreRequest: "score",
}
"""The names of operations in traces, by the kind of request."""
_AUDIO: dict[Task, str] = {"transcribe": "transcription", "translate": "translation"}
"""The names of operations with recordings."""
_LONGEST_NAME = 256
"""Characters of a model's name in traces. Clients may send any name, which a larger number lets fill them."""

Handler = Callable[[Request], Awaitable[Response]]


def application(
    served: Service | Models,
    origins: Sequence[str] = (),
    kept: Path | None = None,
    hosts: Sequence[str] = (),
    load_adapters: bool = False,
    load_models: bool = False,
) -> Starlette:
    """Make the application that serves one model or several.

    Args:
        served: the model, or the models.
        origins: origins of web pages that may use the application from a browser; "*": all pages.
        kept: the file that stores responses; None: memory.
        hosts: host names that are accepted besides the machine's own (`hosts.py`), if there are no API keys.
        load_adapters: whether clients may load and unload adapters, from folders of this machine.
        load_models: whether clients may load and unload models, from files of this machine.
    """
    models = Models.of(served) if isinstance(served, Service) else served
    store = ResponseStore(_STORED_BYTES, kept)
    accepted_hosts = Hosts(hosts, origins)

    async def listed(request: Request) -> Response:
        data = [_model(model, name) for model in models for name in model.names]
        return json_response({"object": "list", "data": data})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        return json_response(_model(models.find(name), name))

    async def chat_completions(request: Request) -> Response:
        service, parsed = await _parsed(models, request, ChatRequest)
        return await _answer(
            service, request, await chat(service, parsed, _owner(models, request)), bool(parsed.stream)
        )

    async def text_completions(request: Request) -> Response:
        service, parsed = await _parsed(models, request, CompletionRequest)
        return await _answer(
            service, request, await completion(service, parsed, _owner(models, request)), bool(parsed.stream)
        )

    async def create_response(request: Request) -> Response:
        service, parsed = await _parsed(models, request, ResponsesRequest)
        job = await responses(service, parsed, store, _owner(models, request))
        return await _answer(service, request, job, bool(parsed.stream), job.failed)

    async def create_message(request: Request) -> Response:
        service, parsed = await _parsed(models, request, MessagesRequest)
        job = await messages(service, parsed, _owner(models, request))
        return await _answer(service, request, job, bool(parsed.stream), job.failed)

    async def count(request: Request) -> Response:
        return json_response(await count_tokens(*await _parsed(models, request, CountRequest)))

    async def to_tokens(request: Request) -> Response:
        return json_response(await tokenize(*await _parsed(models, request, TokenizeRequest)))

    async def to_text(request: Request) -> Response:
        return json_response(await detokenize(*await _parsed(models, request, DetokenizeRequest)))

    async def kept_response(request: Request) -> Response:
        id, owner = request.path_params["id"], _owner(models, request)
        if request.method == "DELETE":
            store.remove(id, owner)
            return json_response({"id": id, "object": "response", "deleted": True})
        return json_response(store.get(id, owner).response)

    async def embed(request: Request) -> Response:
        service, parsed = await _parsed(models, request, EmbeddingRequest)
        _require_base(service, parsed.model, "embeddings")
        return await _whole(service, request, 1, lambda: embeddings(service, parsed))

    async def ranked(request: Request) -> Response:
        service, parsed = await _parsed(models, request, RerankRequest)
        _require_base(service, parsed.model, "scores")
        return await _whole(service, request, 1, lambda: rerank(service, parsed))

    async def scored(request: Request) -> Response:
        service, parsed = await _parsed(models, request, ScoreRequest)
        _require_base(service, parsed.model, "scores")
        return await _whole(service, request, 1, lambda: score(service, parsed))

    def of_audio(task: Task) -> Handler:
        async def handler(request: Request) -> Response:
            _require_open(models)
            if models.only is not None and models.only.service is not None:
                transcriber_of(models.only.service)
            form = await audio_form(models.limits, request)
            name = form.get("model")
            _begin_span(models, request, _AUDIO[task], name, form)
            service = await _taken(models, request, name)
            if name is not None:
                _require_base(service, name, "transcriptions")
            return await _admitted(service, request, 1, lambda: audio(service, form, task))

        return handler

    async def load(request: Request) -> Response:
        _require_loading(load_adapters, "adapter")
        service, parsed = await _parsed(models, request, LoadRequest)
        if parsed.lora_name in models.names and parsed.lora_name not in service.models:
            message = f"the name {parsed.lora_name!r} is that of another model, or of an adapter of one"
            raise ApiError(400, message, param="lora_name", code="invalid_adapter")
        return await load_adapter(service, parsed)

    async def unload(request: Request) -> Response:
        _require_loading(load_adapters, "adapter")
        return await unload_adapter(*await _parsed(models, request, UnloadRequest))

    async def load_one(request: Request) -> Response:
        _require_loading(load_models, "model")
        return await load_model(models, await _body(models, request, LoadModelRequest))

    async def unload_one(request: Request) -> Response:
        _require_loading(load_models, "model")
        return await unload_model(models, await _body(models, request, UnloadModelRequest))

    async def metrics(request: Request) -> Response:
        return Response(models.metrics.text(), media_type="text/plain; version=0.0.4")

    async def health(request: Request) -> Response:
        state = "draining" if models.lifecycle.draining else "ok"
        return json_response({"status": state}, 200 if state == "ok" else 503)

    async def page(request: Request) -> Response:
        return HTMLResponse(page_text(), headers=_PAGE_HEADERS)

    async def page_part(request: Request) -> Response:
        name = request.path_params["name"]
        content = page_parts().get(name)
        if content is None:
            raise ApiError(404, f"unknown path {request.url.path}")
        media = "text/css" if name.endswith(".css") else "text/javascript"
        return Response(content, media_type=media, headers=_PAGE_HEADERS)

    def route(path: str, handler: Handler, *methods: str, open: bool = False) -> Route:
        return Route(
            path, _guarded(models, accepted_hosts, handler, path, open), methods=list(methods) or ["GET"]
        )

    routes = [
        route("/", page, open=True),
        route("/page/{name}", page_part, open=True),
        route("/health", health, open=True),
        route("/metrics", metrics),
        route("/v1/models", listed),
        route("/v1/models/{name:path}", model),
        route("/v1/chat/completions", chat_completions, "POST"),
        route("/v1/completions", text_completions, "POST"),
        route("/v1/embeddings", embed, "POST"),
        *(route(f"{version}/rerank", ranked, "POST") for version in ("", "/v1", "/v2")),
        *(route(f"{version}/score", scored, "POST") for version in ("", "/v1")),
        route("/v1/audio/transcriptions", of_audio("transcribe"), "POST"),
        route("/v1/audio/translations", of_audio("translate"), "POST"),
        route("/v1/messages", create_message, "POST"),
        route("/v1/messages/count_tokens", count, "POST"),
        route("/v1/load_lora_adapter", load, "POST"),
        route("/v1/unload_lora_adapter", unload, "POST"),
        route("/v1/load_model", load_one, "POST"),
        route("/v1/unload_model", unload_one, "POST"),
        route("/tokenize", to_tokens, "POST"),
        route("/detokenize", to_text, "POST"),
        route("/v1/responses", create_response, "POST"),
        route("/v1/responses/{id}", kept_response, "GET", "DELETE"),
    ]
    cors = Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
    return Starlette(
        routes=routes,
        middleware=[cors] if origins else [],
        exception_handlers={HTTPException: _http_error},  # type: ignore[dict-item]
    )


def _guarded(models: Models, hosts: Hosts, handler: Handler, path: str, open: bool) -> Handler:
    """Wrap a handler: check host and key, turn errors into the API's error format, and count responses."""
    body = error_body if path.startswith("/v1/messages") else lambda error: error.body

    async def guarded(request: Request) -> Response:
        failure: Exception | None = None
        try:
            if not models.keys and path != "/health":  # health probes use arbitrary host names
                hosts.check(request.headers)
            if not open:
                models.keys.check(request.headers)
            response = await handler(request)
        except ApiError as error:
            failure, response = error, error.response(body(error))
        except Exception as error:
            failure = error
            _log.exception("%s %s", request.method, path)
            internal = ApiError(500, "internal error; see the server's log")
            response = internal.response(body(internal))
        finally:
            if (taken := request.scope.pop(_TAKEN, None)) is not None:
                taken.release()
        if models.lifecycle.draining or response.status_code in (401, 403, 415, 421, 503):
            response.headers["Connection"] = "close"  # the body may be unread
        if (span := request.scope.get(_SPAN)) is not None:
            if failure is not None:
                span.fail(failure)
            if not isinstance(response, EventStream):  # which ends it itself
                span.end()
        models.metrics.requests.labels(path, str(response.status_code)).inc()
        return response

    return guarded


async def _parsed(models: Models, request: Request, kind: type[RequestT]) -> tuple[Service, RequestT]:
    """Parse the request in the body, and take the model that it is for."""
    parsed = await _body(models, request, kind)
    name = getattr(parsed, "model", None)
    if kind in _OPERATIONS:
        _begin_span(models, request, _OPERATIONS[kind], name, parsed)
    return await _taken(models, request, name), parsed


async def _body(models: Models, request: Request, kind: type[RequestT]) -> RequestT:
    """Parse the request in the body."""
    _require_open(models)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise ApiError(
            415, f"the body must be JSON: send 'Content-Type: application/json', not {media or 'none'!r}"
        )
    return parse(kind, await read_body(request, models.limits))


async def _taken(models: Models, request: Request, name: str | None) -> Service:
    """The loaded model `name`, which stays loaded until the request is answered. A client that leaves no
    longer waits for it.
    """
    async with while_connected(request.receive):
        model = request.scope[_TAKEN] = await models.take(name)
        assert model.service is not None
        return model.service
    raise ApiError(_LEFT, "the client disconnected")


def _begin_span(models: Models, request: Request, operation: str, name: str | None, fields: object) -> None:
    """Begin the span of a request for the model `name`, None for the server's own, if there are traces."""
    if models.tracing is not None:
        only = "" if models.only is None else models.only.name
        request.scope[_SPAN] = models.tracing.begin(
            operation, (name or only)[:_LONGEST_NAME], fields, request.headers
        )


async def _answer(
    service: Service,
    request: Request,
    job: Chat | TextCompletion | Responses | Messages,
    stream: bool,
    failed: Callable[[ApiError], bytes] | None = None,
) -> Response:
    """Generate the answer, whole or as a stream; stop if the client disconnects."""
    count, span = job.generation.count, request.scope.get(_SPAN)
    job.generation.span = span
    if stream:
        leave = service.admission.enter(count)

        def finish() -> None:
            leave()
            if span is not None:
                span.end()

        return EventStream(job.stream(), service.limits, finish, failed)
    return await _whole(service, request, count, job.whole)


async def _whole(
    service: Service, request: Request, count: int, work: Callable[[], Awaitable[Any]]
) -> Response:
    async def answer() -> Response:
        result = await work()
        if (span := request.scope.get(_SPAN)) is not None:
            span.used(result.get("usage", {}))
        return json_response(result)

    return await _admitted(service, request, count, answer)


async def _admitted(
    service: Service, request: Request, count: int, work: Callable[[], Awaitable[Response]]
) -> Response:
    """Take `count` places, and work until the client disconnects."""
    leave = service.admission.enter(count)
    try:
        async with while_connected(request.receive):
            return await work()
    finally:
        leave()
    return Response(status_code=_LEFT)


def _require_open(models: Models) -> None:
    if models.lifecycle.draining:
        raise ApiError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})


def _require_base(service: Service, name: str, result: str) -> None:
    """Refuse an adapter, whose weights do not take part in the `result` of an endpoint."""
    if name != service.name:
        message = f"{name!r} is an adapter; {result} are those of {service.name!r}"
        raise ApiError(400, message, param="model", code="unsupported_parameter")


def _require_loading(allowed: bool, what: str) -> None:
    if not allowed:
        message = f"clients may not load {what}s: start the server with --allow-{what}-loading"
        raise ApiError(403, message, code=f"{what}_loading_disabled")


def _model(model: ServedModel, name: str) -> dict[str, Any]:
    about = {"id": name, "object": "model", "created": model.created, "owned_by": "tilewright"}
    about |= {"loaded": model.service is not None}
    if model.service is not None:
        about |= {"max_model_len": model.service.context}  # the name that load generators look for
        images = ["image"] if model.service.images is not None else []
        about |= {"input_modalities": ["text", *images]}
    return about if name == model.name else about | {"parent": model.name}


def _owner(models: Models, request: Request) -> str:
    """Identify the client by its key, or by its address if there are no keys."""
    if not models.keys:
        return request.client.host if request.client else ""
    return hashlib.sha256(key_of(request.headers).encode()).hexdigest()


def _http_error(request: Request, error: HTTPException) -> Response:
    messages = {
        404: f"unknown path {request.url.path}",
        405: f"{request.url.path} does not support the method {request.method}",
    }
    return ApiError(
        error.status_code, messages.get(error.status_code, error.detail), headers=error.headers
    ).response()
