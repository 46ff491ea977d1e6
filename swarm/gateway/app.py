"""The HTTP application: routes, the key, errors in OpenAI's form, and counting."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from blockswarm.swarm.gateway.answers import as_json, model_card
from blockswarm.swarm.gateway.completions import Completions, unknown_model
from blockswarm.swarm.gateway.errors import ApiError, as_api_error
from blockswarm.swarm.gateway.health import Health
from blockswarm.swarm.gateway.key import ApiKey
from blockswarm.swarm.gateway.limits import Gate, Limits
from blockswarm.swarm.gateway.metrics import CONTENT_TYPE_LATEST, Metrics
from blockswarm.swarm.gateway.requests import ClientGone
from blockswarm.swarm.gateway.writer import Writer

if TYPE_CHECKING:
    from blockswarm.swarm.async_client import AsyncSwarmClient

OPEN_ROUTES = {"/health"}
"""Answered without a key."""

GONE = 499
"""What is counted for a request whose sender hung up; nobody gets it."""


class Gateway:
    """An ASGI application over one client of a swarm. Made in a running event loop.

    Parameters
    ----------
    client : AsyncSwarmClient
        Connected; whoever made it closes it.
    limits : Limits
        What is taken on.
    key : ApiKey, optional
        What requests must carry.
    draft : str
        Who guesses ahead; see `SwarmClient.generate`.
    """

    def __init__(
        self, client: AsyncSwarmClient, limits: Limits, *, key: ApiKey | None = None, draft: str = "ngram"
    ) -> None:
        self._client = client
        self._limits = limits
        self._key = key
        self.gate = Gate(limits)
        self.closing = asyncio.Event()
        """Set it to end every request, with an error that says so."""
        self.metrics = Metrics(self.gate, lambda: client.stats)
        self._health = Health(client)
        writer = Writer(client, self.gate)
        completions = Completions(client.run_id, writer, self.gate, limits, self.metrics, self.closing, draft)
        self._router = Router(
            [
                Route("/v1/completions", completions, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name}", self._model, methods=["GET"]),
                Route("/health", self._tell_health, methods=["GET"]),
                Route("/metrics", self._tell_metrics, methods=["GET"]),
            ],
            redirect_slashes=False,
        )
        self._paths = {route.path for route in self._router.routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is spoken here, not {scope['type']}")
        began = time.perf_counter()
        reply = _Watched(send)
        scope["app"] = self  # the router raises its errors instead of answering
        try:
            self._check_key(scope)
            await self._router(scope, receive, reply)
        except ClientGone:
            reply.status = reply.status or GONE
        except Exception as error:
            await self._refuse(error, reply, scope)
        finally:
            route = scope["path"] if scope["path"] in self._paths else "other"
            self.metrics.requests.labels(route, str(reply.status or GONE)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - began)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or scope["path"] in OPEN_ROUTES:
            return
        if not self._key.opens(Request(scope).headers.get("authorization", "")):
            raise ApiError(
                401, "the API key is missing or wrong: send it as Authorization: Bearer KEY", code="invalid_api_key"
            )

    async def _refuse(self, error: Exception, reply: _Watched, scope: Scope) -> None:
        if isinstance(error, HTTPException):
            error = _of_the_router(error)
        told = as_api_error(error, self._limits.timeout)
        if reply.status is None:
            response = Response(as_json(told.body()), told.status, told.headers(), "application/json")
            await response(scope, _nothing, reply)

    async def _models(self, _request: Request) -> Response:
        return _json({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        if request.path_params["name"] != self._client.run_id:
            raise unknown_model(self._client.run_id)
        return _json(self._card())

    def _card(self) -> dict[str, Any]:
        return model_card(self._client.run_id, self._client.manifest.genesis_time)

    async def _tell_health(self, _request: Request) -> Response:
        well, told = await self._health.tell(closing=self.closing.is_set())
        return _json(told, 200 if well else 503)

    async def _tell_metrics(self, _request: Request) -> Response:
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})


class _Watched:
    """A ``send`` that gives the answer a name, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send: Callable[[Message], Awaitable[None]] = send
        self.name = f"req-{secrets.token_hex(8)}"
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), (b"x-request-id", self.name.encode())]
        await self._send(message)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _json(value: Any, status: int = 200) -> Response:
    return Response(as_json(value), status, media_type="application/json")


def _of_the_router(error: HTTPException) -> ApiError:
    if error.status_code == 405:
        return ApiError(405, "this path does not take that method", code="method_not_allowed")
    return ApiError(404, "no such path: there are /v1/completions, /v1/models, /health, /metrics", code="unknown_url")
