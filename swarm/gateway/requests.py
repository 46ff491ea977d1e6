"""Getting a request's body, and working for it only as long as somebody waits: bounded in bytes and in seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive

from blockswarm.swarm.gateway.errors import ApiError, closing_down, out_of_time
from blockswarm.swarm.gateway.limits import Limits


class ClientGone(Exception):
    """Whoever asked has hung up."""


async def read_body(headers: Headers, receive: Receive, limits: Limits) -> bytes:
    """The whole body.

    Raises
    ------
    ApiError
        413 when it is or says to be too long, 408 when it does not come in time, 415 when it is not JSON. (A page in
        somebody's browser can send other types to this machine without asking; JSON it cannot.)
    ClientGone
        When the sender hangs up.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "the body must be JSON, and say so: content-type: application/json")
    # h11 has refused lengths that are no numbers.
    if int(headers.get("content-length", 0)) > limits.max_body_bytes:
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                if len(body) > limits.max_body_bytes:
                    raise _too_large(limits)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {limits.body_seconds:g} s") from None


async def while_wanted(
    work: Coroutine[Any, Any, None], receive: Receive, closing: asyncio.Event, seconds: float, limits: Limits
) -> None:
    """Do ``work`` unless the client hangs up, the gateway closes, or ``seconds`` are over; then it is cancelled.

    Raises
    ------
    ClientGone, ApiError
        In these cases; and whatever ``work`` raises.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(receive))
    ending = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait((working, gone, ending), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        if gone.done():
            raise ClientGone
        raise closing_down() if ending.done() else out_of_time(limits.timeout)
    finally:
        for task in (working, gone, ending):
            task.cancel()
        await asyncio.gather(working, gone, ending, return_exceptions=True)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"the body is longer than {limits.max_body_bytes} bytes", code="request_too_large")
