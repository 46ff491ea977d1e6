"""Requests as they come over the wire: checked by pydantic, strictly, and refused with the name of the field."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blockswarm.swarm.gateway.errors import ApiError
from blockswarm.swarm.options import MAX_SEED

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_LOGPROBS = 20
"""Likeliest bytes told for each byte, at most."""

SHOWN = 64
"""Characters of a field's name that an error repeats."""

Token = Annotated[int, Field(ge=0, le=255)]
"""A byte: the model's vocabulary has no others."""

Stop = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]

OWN_WORDS = {
    "prompt": "must be a text, a list of texts, a list of tokens (bytes, 0 to 255) or a list of such lists",
    "stop": f"must be a text or at most {MAX_STOPS} texts, of at most {MAX_STOP_CHARACTERS} characters each",
}
"""What is said of fields that may be of several types, where pydantic would tell of each type apart."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
}
"""Fields of OpenAI's that are known here but do nothing, with the values that ask for nothing."""


Item = TypeVar("Item")

Several = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is refused for its first wrong item: a body has room for half a million, and noting all of them took
seconds of the loop and nearly a gigabyte."""


class StreamOptions(BaseModel):
    """How a stream comes."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Accepted and without effect."""


class CompletionRequest(BaseModel):
    """Body of ``POST /v1/completions``; ``top_k`` is not in OpenAI's."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: Annotated[str, Field(max_length=256)]
    prompt: str | Several[str] | Several[Token] | Several[Several[Token]] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=256)] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=256)] | None = None
    """Accepted and without effect."""
    suffix: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None


def parse_request(body: bytes) -> CompletionRequest:
    """The request in a body.

    Raises
    ------
    ApiError
        400, naming the field.
    """
    try:
        request = CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        raise _refused(error) from None
    for name, harmless in UNSUPPORTED.items():
        if getattr(request, name) not in harmless:
            raise ApiError(400, f"{name} is not supported here: leave it out", param=name, code="unsupported_parameter")
    if request.best_of not in (None, request.n or 1):
        raise ApiError(
            400, "best_of: must equal n, every text is returned", param="best_of", code="unsupported_parameter"
        )
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options: only with stream=true", param="stream_options")
    return request


def _refused(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if not first["loc"]:
        return ApiError(400, f"the body is no JSON object of a request: {first['msg']}", code="invalid_json")
    field = str(first["loc"][0])[:SHOWN]
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown parameter: {field!r}", param=field, code="unknown_parameter")
    if first["type"] == "missing":
        return ApiError(400, f"missing parameter: {field!r}", param=field, code="missing_required_parameter")
    reason = OWN_WORDS.get(field) or first["msg"][:1].lower() + first["msg"][1:]
    return ApiError(400, f"{field}: {reason}", param=field, code="invalid_value")
