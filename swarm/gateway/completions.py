"""``POST /v1/completions``: a request's way from its body to the last byte of the answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import aclosing

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from blockswarm.swarm.deadline import Deadline
from blockswarm.swarm.gateway.answers import STREAM_END, Answer, as_event, as_json
from blockswarm.swarm.gateway.errors import ApiError, as_api_error, closing_down
from blockswarm.swarm.gateway.jobs import Order, make_order
from blockswarm.swarm.gateway.limits import Gate, Limits
from blockswarm.swarm.gateway.metrics import Metrics
from blockswarm.swarm.gateway.requests import ClientGone, read_body, while_wanted
from blockswarm.swarm.gateway.wire import parse_request
from blockswarm.swarm.gateway.writer import Step, Writer

LAST_WORDS_SECONDS = 2.0
"""Time to tell a reader of a stream why it ends early."""


class Completions:
    """The endpoint.

    Parameters
    ----------
    run_id : str
        Name of the model.
    writer : Writer
        Who writes.
    gate, limits, metrics
        How much at a time, how much at all, and where it is counted.
    closing : asyncio.Event
        Set when everything must end.
    draft : str
        Who guesses ahead; texts do not depend on it.
    """

    def __init__(
        self,
        run_id: str,
        writer: Writer,
        gate: Gate,
        limits: Limits,
        metrics: Metrics,
        closing: asyncio.Event,
        draft: str,
    ) -> None:
        self._run_id = run_id
        self._writer = writer
        self._gate = gate
        self._limits = limits
        self._metrics = metrics
        self._closing = closing
        self._draft = draft

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises `ApiError` while nothing was sent, `ClientGone` when nobody listens."""
        if self._closing.is_set():
            raise closing_down()
        deadline = Deadline(self._limits.timeout)
        with self._gate.admit():
            body = await read_body(Headers(scope=scope), receive, self._limits)
            request = parse_request(body)
            if request.model != self._run_id:
                raise unknown_model(self._run_id)
            order = make_order(request, self._limits, draft=self._draft)
            self._metrics.tokens.labels("prompt").inc(order.prompt_tokens)
            answer = Answer(f"cmpl-{secrets.token_hex(12)}", self._run_id, int(time.time()), order)
            reply = _Reply(send)
            left = deadline.left()
            work = (self._stream if order.stream else self._whole)(order, answer, deadline, reply)
            try:
                await while_wanted(work, receive, self._closing, left, self._limits)
            except Exception as error:
                if not reply.begun or isinstance(error, ClientGone):
                    raise
                await reply.give_up(as_api_error(error, self._limits.timeout))
            finally:
                self._metrics.tokens.labels("completion").inc(answer.tokens)

    async def _whole(self, order: Order, answer: Answer, deadline: Deadline, reply: _Reply) -> None:
        async with aclosing(self._writer.steps(order, deadline)) as found:
            steps = [step async for step in found]
        for step in steps:
            self._note(answer, step)
        await reply.send_json(as_json(answer.whole(steps)))

    async def _stream(self, order: Order, answer: Answer, deadline: Deadline, reply: _Reply) -> None:
        async with aclosing(self._writer.steps(order, deadline)) as steps:
            # Nothing is sent before the first step is there: until then an error has a status code of its own.
            async for step in steps:
                self._note(answer, step)
                if step.text or step.logprobs or step.finish_reason:
                    await reply.send_events(as_event(answer.chunk(step)))
        if order.include_usage:
            await reply.send_events(as_event(answer.usage_chunk()))
        await reply.send_events(STREAM_END, last=True)

    def _note(self, answer: Answer, step: Step) -> None:
        answer.note(step)
        if step.finish_reason is not None and step.report.first_byte_seconds is not None:
            self._metrics.first_byte.observe(step.report.first_byte_seconds)


class _Reply:
    """What is sent back: one JSON body, or events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self._events = False

    async def send_json(self, body: bytes) -> None:
        await self._begin("application/json", length=len(body))
        await self._send({"type": "http.response.body", "body": body})

    async def send_events(self, events: bytes, *, last: bool = False) -> None:
        if not self.begun:
            self._events = True
            await self._begin("text/event-stream; charset=utf-8")
        await self._send({"type": "http.response.body", "body": events, "more_body": not last})

    async def give_up(self, error: ApiError) -> None:
        """End a stream that cannot go on: an event says why, as OpenAI's do."""
        if self._events:
            try:
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self.send_events(as_event(error.body()), last=True)
            except TimeoutError:
                pass  # nobody reads: the server drops the connection

    async def _begin(self, kind: str, length: int | None = None) -> None:
        self.begun = True
        headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def unknown_model(run_id: str) -> ApiError:
    """404: there is only one model."""
    return ApiError(404, f"no such model here; there is: {run_id}", param="model", code="model_not_found")
