"""From a request to the texts that it asks for."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from blockswarm.swarm.gateway.errors import ApiError
from blockswarm.swarm.gateway.limits import Limits
from blockswarm.swarm.gateway.wire import CompletionRequest
from blockswarm.swarm.options import MAX_SEED, WritingOptions

DEFAULT_TOKENS = 16
"""OpenAI's default; so is a temperature of 1."""


MAX_TOLD = 1 << 19
"""Log-probabilities told in one answer, over all its texts: enough for the longest prompt with most of each byte."""


@dataclass(frozen=True)
class Job:
    """One text to be written."""

    index: int
    """Its place among the choices of the answer."""
    prompt: bytes
    options: WritingOptions


@dataclass(frozen=True)
class Order:
    """All that one request asks for."""

    jobs: tuple[Job, ...]
    echo: bool
    logprobs: int | None
    """How many of the likeliest bytes are told for each; None: no log-probabilities at all."""
    stream: bool
    include_usage: bool
    prompt_tokens: int
    """Bytes of all prompts, each counted once."""


def make_order(request: CompletionRequest, limits: Limits, *, draft: str = "ngram") -> Order:
    """What is to be done for ``request``.

    The ``j``-th of the ``n`` texts of each prompt has the seed ``seed + j``: a list of prompts gives what its prompts
    give alone, and the first text is the one ``SwarmClient.generate`` writes with that seed.

    Raises
    ------
    ApiError
        400, naming the field whose limit is broken.
    """
    prompts = _prompts(request.prompt)
    count = request.n or 1
    if len(prompts) * count > limits.max_choices:
        raise ApiError(
            400,
            f"{len(prompts)} prompts with n={count} are more than the {limits.max_choices} texts a request may ask for",
            param="n" if len(prompts) <= limits.max_choices else "prompt",
            code="invalid_value",
        )
    longest = max(map(len, prompts))
    if longest > limits.max_prompt_bytes:
        raise ApiError(
            400,
            f"prompt: {longest} bytes, at most {limits.max_prompt_bytes} are taken",
            param="prompt",
            code="context_length_exceeded",
        )
    wanted = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
    if wanted > limits.max_tokens:
        raise ApiError(400, f"max_tokens: at most {limits.max_tokens} here", param="max_tokens", code="invalid_value")
    _check_told(request, count * sum(map(len, prompts)), len(prompts) * count * wanted)
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    jobs = []
    for number, prompt in enumerate(prompts):
        first = secrets.randbelow(2**32) if request.seed is None else request.seed
        for place in range(count):
            options: WritingOptions = {
                "max_bytes": wanted,
                "temperature": 1.0 if request.temperature is None else request.temperature,
                "top_p": 1.0 if request.top_p is None else request.top_p,
                "top_k": request.top_k or 0,
                "seed": (first + place) % (MAX_SEED + 1),
                "stop": stops,
                "draft": draft,
            }
            jobs.append(Job(number * count + place, prompt, options))
    return Order(
        jobs=tuple(jobs),
        echo=bool(request.echo),
        logprobs=request.logprobs,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        prompt_tokens=sum(map(len, prompts)),
    )


def _check_told(request: CompletionRequest, echoed: int, written: int) -> None:
    """Whether the log-probabilities of so many bytes fit one answer."""
    if request.logprobs is None:
        return
    told = (1 + request.logprobs) * (written + (echoed if request.echo else 0))
    if told > MAX_TOLD:
        raise ApiError(
            400,
            f"logprobs: {told} would be told over all texts, at most {MAX_TOLD} are; ask for fewer or shorter ones",
            param="logprobs",
            code="invalid_value",
        )


def _prompts(prompt: str | Sequence[str | int | Sequence[int]] | None) -> list[bytes]:
    """Each prompt as bytes; no prompt at all is an empty one."""
    if prompt is None or isinstance(prompt, str):
        return [(prompt or "").encode()]
    if not prompt:
        raise ApiError(400, "prompt: the list is empty", param="prompt", code="invalid_value")
    if isinstance(prompt[0], int):
        return [bytes(token for token in prompt if isinstance(token, int))]
    return [one.encode() if isinstance(one, str) else bytes(one) for one in prompt if not isinstance(one, int)]
