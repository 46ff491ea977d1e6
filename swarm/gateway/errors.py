"""What is answered when a request cannot be: a status code, and a body in OpenAI's form."""

from __future__ import annotations

import logging
from typing import Any

from blockswarm.errors import BlockswarmError, UsageError
from blockswarm.swarm.errors import DeadlineError, NoHolderError, SwarmError, UntrustedAnswerError
from blockswarm.swarm.subjects import subject_name

LOG = logging.getLogger("blockswarm.gateway")


class GatewayError(SwarmError):
    """The gateway itself cannot run."""


class GivenGatewayError(GatewayError, UsageError):
    """It cannot run with what it was given: an address, a key, a limit."""


class ApiError(SwarmError):
    """An answer that is an error.

    Parameters
    ----------
    status : int
        HTTP status code.
    message : str
        One line for people; holds nothing a stranger may not read, and nothing of what he sent but names.
    kind : str
        OpenAI's ``type``.
    param : str, optional
        The field of the request at fault.
    code : str, optional
        For programs.
    retry_after : int, optional
        Seconds after which to try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The JSON object that is sent."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def too_busy(retry_after: int) -> ApiError:
    """429: everything is taken, and so is the queue."""
    return ApiError(
        429,
        f"too many requests at once: try again in {retry_after} s",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=retry_after,
    )


def out_of_time(seconds: float) -> ApiError:
    """504: the time of one request is over."""
    return ApiError(504, f"no complete answer within {seconds:g} s", kind="server_error", code="deadline_exceeded")


def closing_down() -> ApiError:
    """503: the gateway is about to end."""
    return ApiError(503, "the gateway is shutting down", kind="server_error", code="shutting_down", retry_after=5)


def as_api_error(error: BaseException, seconds: float) -> ApiError:
    """How ``error`` is told to whoever sent the request; ``seconds`` is what a request may take.

    Texts of the client's errors name peers and give advice to people at a command line: they stay here.
    """
    match error:
        case ApiError():
            return error
        case DeadlineError() | TimeoutError():
            return out_of_time(seconds)
        case NoHolderError():
            return ApiError(
                503,
                f"nobody serves {subject_name(error.block)} of the model at the moment",
                kind="server_error",
                code="no_holder",
                retry_after=5,
            )
        case UntrustedAnswerError():
            return ApiError(502, "the swarm's answers break the rules", kind="server_error", code="untrusted_answer")
        case BlockswarmError() if not isinstance(error, UsageError):  # that one would be the gateway's own mistake
            return ApiError(502, "the swarm did not answer", kind="server_error", code="swarm_error", retry_after=5)
    LOG.error("a request failed", exc_info=error)
    return ApiError(500, "an error of the gateway; its log says more", kind="server_error", code="internal_error")
