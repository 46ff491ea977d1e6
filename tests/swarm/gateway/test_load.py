"""Many at once, slow ones, and such as hang up: turns are given fairly and always come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

import httpx
import openai
import pytest

from blockswarm.swarm.gateway import connection
from tests.swarm.gateway.conftest import Running, Start
from tests.swarm.gateway.test_completions import events
from tests.swarm.gateway.test_refusals import said

pytestmark = pytest.mark.asyncio(loop_scope="session")

POST = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


async def test_who_comes_when_all_places_are_taken_is_told_when_to_come_again(start: Start) -> None:
    running = await start(concurrency=1, queue=1)
    running.slow(0.05)
    at_work = [asyncio.create_task(running.ask(max_tokens=30)) for _ in range(2)]
    await running.until(lambda: running.gateway.gate.requests == 2)
    refused = await running.ask()
    assert said(refused, 429)["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    async with running.openai() as client:
        with pytest.raises(openai.RateLimitError):
            await client.completions.create(model=running.run_id, prompt="x")
    assert [(await task).status_code for task in at_work] == [200, 200]
    assert (await running.ask(max_tokens=1)).status_code == 200
    gate = running.gateway.gate
    await running.until(lambda: (gate.requests, gate.running, gate.waiting) == (0, 0, 0))


@pytest.mark.parametrize("stream", [False, True])
async def test_who_hangs_up_gives_his_place_back(start: Start, stream: bool) -> None:
    running = await start(concurrency=1, queue=0)
    running.slow(0.05)
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=running.url) as leaving:
        body = {"model": running.run_id, "max_tokens": 2000, "stream": stream, "n": 3}
        asking = asyncio.create_task(leaving.post("/v1/completions", json=body))
        await running.until(lambda: running.client.stats.generated_bytes > 2)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await running.until(lambda: running.gateway.gate.running == running.gateway.gate.requests == 0)
    sent = running.client.stats.requests
    assert (await running.ask(max_tokens=1)).status_code == 200
    assert running.client.stats.requests - sent < 20 and time.monotonic() - began < 20


async def test_a_large_request_lets_others_have_their_turn(start: Start) -> None:
    running = await start(concurrency=2)
    running.slow(0.02)
    large = asyncio.create_task(running.ask(max_tokens=4, n=32))
    await running.until(lambda: running.gateway.gate.running == 2)
    assert running.gateway.gate.waiting <= 2
    assert (await running.ask(max_tokens=4)).status_code == 200
    assert not large.done()
    assert len((await large).json()["choices"]) == 32


@pytest.mark.parametrize("stream", [False, True])
async def test_the_time_of_a_request_is_bounded(start: Start, stream: bool) -> None:
    running = await start(timeout=1.0)
    running.slow(0.1)
    response = await running.ask(max_tokens=1000, stream=stream)
    assert response.elapsed.total_seconds() < 5
    if stream:
        *chunks, error = [json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-1]]
        assert chunks and error["error"]["code"] == "deadline_exceeded"
    else:
        assert said(response, 504)["code"] == "deadline_exceeded"


async def test_waiting_for_a_turn_counts(start: Start) -> None:
    running = await start(concurrency=1, timeout=1.0)
    running.slow(0.1)
    both = await asyncio.gather(*(running.ask(max_tokens=1000) for _ in range(2)))
    assert {said(response, 504)["code"] for response in both} == {"deadline_exceeded"}


async def test_a_stream_that_fails_says_so_and_openais_client_hears_it(start: Start) -> None:
    running = await start()
    running.slow(0.01)
    async with running.openai() as client:
        stream = await client.completions.create(model=running.run_id, prompt="The ", max_tokens=500, stream=True)
        with pytest.raises(openai.APIError, match="nobody serves block 0"):
            async for _ in stream:
                for name in ("0a", "0b"):
                    running.holders[name].left = 0


async def test_closing_ends_streams_cleanly_and_takes_nothing_new(start: Start) -> None:
    running = await start()
    running.slow(0.05)
    streaming = asyncio.create_task(running.ask(max_tokens=2000, stream=True))
    waiting = asyncio.create_task(running.ask(max_tokens=2000))
    await running.until(lambda: running.client.stats.generated_bytes > 4)
    running.gateway.closing.set()
    text = (await streaming).text  # an incomplete body would be an error here
    assert json.loads(text.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert said(await waiting, 503)["code"] == "shutting_down"
    assert said(await running.ask(), 503)["code"] == "shutting_down"
    assert (await running.http.get("/health")).json()["status"] == "shutting down"


async def test_a_body_that_does_not_come_is_not_waited_for(start: Start) -> None:
    running = await start(body_seconds=0.3)
    reader, writer = await connect(running)
    writer.write(f"{POST}content-length: 100\r\n\r\n{{".encode())
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await running.until(lambda: running.gateway.gate.requests == 0)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea"],
    ids=["silent", "half of the headers", "half of a second request"],
)
async def test_a_connection_on_which_no_request_comes_is_cut(
    start: Start, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.3)
    running = await start()
    reader, writer = await connect(running)
    writer.write(sent)
    await ended(reader)
    writer.close()


async def test_an_answer_that_nobody_reads_is_cut(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALLED_SECONDS", 0.3)
    running = await start(send_buffer=4096)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(plain, ("127.0.0.1", int(running.url.rpartition(":")[2])))
    body = json.dumps({"model": running.run_id, "prompt": "x", "max_tokens": 2000, "logprobs": 20, "stream": True})
    head = f"{POST}content-length: {len(body)}\r\n\r\n"
    await loop.sock_sendall(plain, (head + body).encode())
    await running.until(lambda: running.gateway.gate.running > 0)
    await running.until(lambda: running.gateway.gate.requests == 0)
    assert running.client.stats.generated_bytes < 2000
    plain.close()


async def test_headers_are_bounded(running: Running) -> None:
    reader, writer = await connect(running)
    writer.write(b"GET /health HTTP/1.1\r\n" + b"x: " + b"y" * 100_000)
    assert b" 400 " in await reader.readline()
    await ended(reader)
    writer.close()


async def test_a_request_that_breaks_off_in_nonsense_harms_nobody(running: Running) -> None:
    for nonsense in (
        b"\x16\x03\x01 nonsense\r\n\r\n",
        f"{POST}transfer-encoding: chunked\r\n\r\nzz\r\n".encode(),
    ):
        reader, writer = await connect(running)
        writer.write(nonsense)
        await ended(reader)
        writer.close()
    assert (await running.ask(max_tokens=1)).status_code == 200


async def test_connections_are_bounded(start: Start) -> None:
    running = await start(max_connections=3)
    held = [await connect(running) for _ in range(3)]
    await running.until(lambda: True)
    late, _ = await connect(running)
    await ended(late)
    for _, writer in held:
        writer.close()


async def test_health_names_blocks_without_a_holder(running: Running) -> None:
    told = (await running.http.get("/health")).json()
    assert told == {"status": "ok", "model": running.run_id, "blocks_without_holder": []}


async def test_metrics_count_what_was_done(start: Start) -> None:
    running = await start()
    *_, done = events((await running.ask(max_tokens=7, stream=True)).text)
    assert done == "[DONE]"
    await running.http.get("/nowhere/to/be/found")
    lines = (await running.http.get("/metrics")).text.splitlines()
    assert 'blockswarm_gateway_requests_total{route="/v1/completions",status="200"} 1.0' in lines
    assert 'blockswarm_gateway_requests_total{route="other",status="404"} 1.0' in lines
    assert 'blockswarm_gateway_tokens_total{kind="completion"} 7.0' in lines
    assert 'blockswarm_gateway_tokens_total{kind="prompt"} 4.0' in lines
    assert "blockswarm_gateway_running 0.0" in lines
    assert float(next(line for line in lines if line.startswith("blockswarm_client_round_trips_total ")).split()[1]) > 0


async def connect(running: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the other side has closed the connection."""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            await reader.read()
