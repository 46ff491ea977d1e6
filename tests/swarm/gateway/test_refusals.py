"""Requests that cannot be carried out, and what is said about them."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest

from tests.swarm.gateway.conftest import Running, Start

pytestmark = pytest.mark.asyncio(loop_scope="session")


def said(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error in an answer, which has OpenAI's form."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json" and response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and len(error["message"]) < 300
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.5),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_k", 257),
        ("max_tokens", -1),
        ("max_tokens", 10**400),
        ("max_tokens", 2049),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("seed", -1),
        ("seed", 2**63),
        ("n", 0),
        ("n", 33),
        ("best_of", 2),
        ("logprobs", 21),
        ("logprobs", True),
        ("stop", ["x"] * 10_000),
        ("stop", "x" * 257),
        ("stop", [1]),
        ("prompt", []),
        ("prompt", [256]),
        ("prompt", [1.5]),
        ("prompt", ["a", 1]),
        ("prompt", [[[1]]]),
        ("prompt", {"text": "x"}),
        ("prompt", "x" * 16385),
        ("prompt", ["x"] * 33),
        ("stream", 1),
        ("stream_options", {"include_usage": True}),
        ("suffix", "the end"),
        ("presence_penalty", 0.5),
        ("logit_bias", {"50": 1}),
        ("model", 5),
        ("tools", []),
        ("x" * 1000, 1),
    ],
)
async def test_a_bad_parameter_is_named(running: Running, field: str, value: Any) -> None:
    response = await running.http.post("/v1/completions", json={"model": running.run_id, field: value})
    error = said(response, 400)
    assert error["param"] == field[:64] and field[:64] in error["message"].replace(f"{field}=", field)
    assert error["type"] == "invalid_request_error"


async def test_an_answer_tells_a_bounded_number_of_log_probabilities(running: Running) -> None:
    asked = {"model": running.run_id, "prompt": "x" * 16_384, "echo": True, "logprobs": 20, "max_tokens": 0, "n": 2}
    error = said(await running.http.post("/v1/completions", json=asked), 400)
    assert error["param"] == "logprobs" and "688128 would be told" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'"text"',
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"model":' * 20_000,
        b'{"model": "m", "prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "temperature": Infinity}',
        b'{"model": "m", "temperature": 1e999}',
        b'{"model": "m", "max_tokens": ' + b"9" * 100_000 + b"}",
        b'{"model": "m", "prompt": "\\ud800"}',
        b"{" + b",".join(b'"k%d": 1' % number for number in range(50_000)) + b"}",
        b'{"model": "m", "prompt": [' + b",".join([b"-1"] * 340_000) + b"]}",
        b'{"model": "m", "prompt": [' + b",".join([b"[-1]"] * 200_000) + b"]}",
    ],
    ids=lambda body: repr(body[:24]),
)
async def test_a_body_that_is_no_request_is_refused_at_once(running: Running, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    begun = time.process_time()  # the gateway runs in this process, and the machine may have other work
    response = await running.http.post("/v1/completions", content=body, headers=headers)
    said(response, 400)
    assert time.process_time() - begun < 2


async def test_an_unknown_model_is_not_found(running: Running) -> None:
    error = said(await running.http.post("/v1/completions", json={"model": "gpt-4"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found") and running.run_id in error["message"]
    assert said(await running.http.get("/v1/models/gpt-4"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat/completions", "/v1/completions/", "/v1/models/a/b", "/docs"])
async def test_an_unknown_path_is_not_found(running: Running, path: str) -> None:
    assert said(await running.http.get(path), 404)["code"] == "unknown_url"


async def test_a_wrong_method_is_refused(running: Running) -> None:
    assert said(await running.http.get("/v1/completions"), 405)["code"] == "method_not_allowed"


async def test_only_json_is_taken_because_pages_in_a_browser_can_send_the_rest(running: Running) -> None:
    body = json.dumps({"model": running.run_id}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        said(await running.http.post("/v1/completions", content=body, headers={"content-type": kind}), 415)
    sent = await running.http.post(
        "/v1/completions", content=body, headers={"content-type": "Application/JSON; charset=utf-8"}
    )
    assert sent.status_code == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_that_is_too_long_is_refused(start: Start, declared: bool) -> None:
    running = await start(max_body_bytes=1000)

    async def parts() -> Any:
        for _ in range(3):
            yield b" " * 500

    content: Any = b" " * 1500 if declared else parts()
    response = await running.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert said(response, 413)["code"] == "request_too_large"


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", "Bearer a-secret-", "Basic a-secret", "a-secret", "Bearer \xff"]
)
async def test_nothing_is_told_without_the_key(start: Start, given: str | None) -> None:
    running = await start(key="a-secret")
    headers = {} if given is None else {b"authorization": given.encode("latin-1")}
    async with httpx.AsyncClient(base_url=running.url) as stranger:
        for path in ("/v1/models", "/v1/completions", "/metrics", "/nowhere"):
            response = await stranger.get(path, headers=headers)
            assert said(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        assert (await stranger.get("/health")).status_code == 200


async def test_openais_own_client_raises_its_own_errors(start: Start) -> None:
    running = await start(key="a-secret")
    async with running.openai("wrong") as stranger, running.openai() as client:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="gpt-4", prompt="x")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model=running.run_id, prompt="x", temperature=5)
        assert caught.value.param == "temperature"


async def test_a_block_that_nobody_serves_is_named(start: Start) -> None:
    running = await start()
    for name in ("1a", "1b"):
        running.holders[name].left = 0
    error = said(await running.ask(), 503)
    assert error["code"] == "no_holder" and "block 1" in error["message"]
