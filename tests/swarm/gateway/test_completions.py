"""What ``/v1/completions`` answers: the swarm's text, in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.swarm.gateway.conftest import Running, Start

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1},
    {"temperature": 0.7, "top_p": 0.6},
    {"temperature": 1, "top_k": 4},
    {},
]


def events(text: str) -> list[Any]:
    """The events of a stream; the last one is the word that ends it."""
    assert text.endswith("\n\n")
    lines = [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("options", OPTIONS)
async def test_a_text_is_the_one_that_the_client_writes_streamed_or_not(
    running: Running, options: dict[str, Any]
) -> None:
    expected = await running.client.generate("The ", max_bytes=40, seed=3, **{"temperature": 1.0, **options})
    whole = (await running.ask(max_tokens=40, seed=3, **options)).json()
    (choice,) = whole["choices"]
    assert choice == {"index": 0, "text": expected, "logprobs": None, "finish_reason": "length", "seed": 3}
    assert whole["usage"] == {"prompt_tokens": 4, "completion_tokens": 40, "total_tokens": 44}

    *chunks, done = events((await running.ask(max_tokens=40, seed=3, stream=True, **options)).text)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert {chunk["system_fingerprint"] for chunk in chunks} == {whole["system_fingerprint"]}


async def test_without_a_seed_texts_differ_and_tell_how_to_get_them_again(running: Running) -> None:
    first, second = [(await running.ask(max_tokens=30)).json()["choices"][0] for _ in range(2)]
    assert first["text"] != second["text"]
    again = (await running.ask(max_tokens=30, seed=first["seed"])).json()["choices"][0]
    assert again == first


async def test_a_list_of_prompts_gives_what_its_prompts_give_alone(running: Running) -> None:
    prompts = ["The ", "", "Bäume"]
    together = (await running.ask(prompts, n=2, max_tokens=12, seed=5)).json()
    alone = [(await running.ask(prompt, max_tokens=12, seed=5 + j)).json() for prompt in prompts for j in range(2)]
    assert [choice["index"] for choice in together["choices"]] == list(range(6))
    assert [choice["text"] for choice in together["choices"]] == [one["choices"][0]["text"] for one in alone]
    assert together["usage"]["prompt_tokens"] == sum(len(prompt.encode()) for prompt in prompts)
    assert together["usage"]["completion_tokens"] == 6 * 12


async def test_the_texts_of_a_stream_mingle_and_each_is_whole(running: Running) -> None:
    wanted = {"max_tokens": 12, "seed": 5, "n": 9}
    whole = (await running.ask(**wanted)).json()["choices"]
    *chunks, _ = events((await running.ask(stream=True, **wanted)).text)
    texts = dict.fromkeys(range(9), "")
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {choice["index"]: choice["text"] for choice in whole}


async def test_tokens_are_bytes(running: Running) -> None:
    text = "Bäume 木"
    by_text, by_bytes, in_list = [
        (await running.ask(prompt, max_tokens=9, seed=1)).json()["choices"][0]["text"]
        for prompt in (text, list(text.encode()), [list(text.encode())])
    ]
    assert by_text == by_bytes == in_list


async def test_echo_puts_the_prompt_before_the_text(running: Running) -> None:
    plain = (await running.ask("Bäume ", max_tokens=9, seed=1)).json()["choices"][0]["text"]
    echoed = (await running.ask("Bäume ", max_tokens=9, seed=1, echo=True)).json()
    assert echoed["choices"][0]["text"] == "Bäume " + plain
    assert echoed["usage"]["completion_tokens"] == 9
    only = (await running.ask("Bäume ", max_tokens=0, echo=True)).json()
    assert only["choices"][0]["text"] == "Bäume " and only["usage"]["completion_tokens"] == 0


async def test_a_prompt_that_ends_within_a_character_is_echoed_as_one_text(running: Running) -> None:
    prompt = list("木".encode()[:2])
    echoed = (await running.ask(prompt, max_tokens=12, seed=1, echo=True)).json()["choices"][0]["text"]
    data = b"".join(
        [piece.data async for piece in running.client.pieces(bytes(prompt), max_bytes=12, seed=1, temperature=1.0)]
    )
    assert echoed == (bytes(prompt) + data).decode(errors="replace")


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_end_a_text_and_are_not_in_it(running: Running, stream: bool) -> None:
    text = await running.client.generate("The ", max_bytes=60, seed=3, temperature=1.0)
    stop = text[20:22]
    response = await running.ask(max_tokens=60, seed=3, stop=["never", stop], stream=stream)
    chunks = events(response.text)[:-1] if stream else [response.json()]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text[: text.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_the_models(running: Running, stream: bool) -> None:
    wanted = {"max_tokens": 20, "seed": 3, "logprobs": 3, "echo": True, "stream": stream}
    response = await running.ask("Bäu", **wanted)
    chunks = events(response.text)[:-1] if stream else [response.json()]
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    log = {name: [value for part in told for value in part[name]] for name in told[0]}

    pieces = [piece async for piece in running.client.pieces("Bäu", max_bytes=20, seed=3, temperature=1.0)]
    text = "Bäu".encode() + b"".join(piece.data for piece in pieces)
    table = await running.client.logprobs(text)
    assert log["tokens"] == [chr(byte) if byte < 128 else f"bytes:\\x{byte:02x}" for byte in text]
    assert log["token_logprobs"][0] is None and log["top_logprobs"][0] is None
    assert log["token_logprobs"][1:] == pytest.approx([table[i, byte] for i, byte in enumerate(text[1:])], abs=1e-4)
    for i, top in enumerate(log["top_logprobs"][1:]):
        best = np.sort(table[i])[::-1][:3]
        assert sorted(top.values(), reverse=True)[:3] == pytest.approx(list(best), abs=1e-4)
        assert len(top) <= 4 and log["tokens"][i + 1] in top
    assert log["text_offset"][:4] == [0, 1, 1, 2]
    assert log["text_offset"][-1] < len("".join(chunk["choices"][0]["text"] for chunk in chunks))


async def test_zero_log_probabilities_are_those_of_the_text_alone(running: Running) -> None:
    log = (await running.ask(max_tokens=5, logprobs=0)).json()["choices"][0]["logprobs"]
    assert len(log["token_logprobs"]) == 5 and log["top_logprobs"] is None


@pytest.mark.parametrize("prompt", ["The swarm", "The swarm. " * 40], ids=["short", "long"])
async def test_a_prompt_can_be_scored_without_writing_anything(running: Running, prompt: str) -> None:
    answer = (await running.ask(prompt, max_tokens=0, echo=True, logprobs=1)).json()["choices"][0]
    score = await running.client.score(prompt[1:], given=prompt[0])
    assert sum(answer["logprobs"]["token_logprobs"][1:]) == pytest.approx(float(score.log_probs.sum()), abs=1e-3)
    assert answer["text"] == prompt


async def test_a_stream_tells_usage_when_asked_to(running: Running) -> None:
    response = await running.ask(max_tokens=8, stream=True, stream_options={"include_usage": True})
    *chunks, last, _ = events(response.text)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8


async def test_bytes_that_are_no_characters_stream_as_they_come_whole(running: Running) -> None:
    wanted: dict[str, Any] = {
        "max_tokens": 200,
        "seed": 2,
        "temperature": 2,
    }  # an untrained model writes all bytes alike
    whole = (await running.ask(**wanted)).json()["choices"][0]["text"]
    *chunks, _ = events((await running.ask(stream=True, **wanted)).text)
    assert "\ufffd" in whole and "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert whole == await running.client.generate("The ", max_bytes=200, seed=2, temperature=2.0)


async def test_openais_own_client_understands_it(start: Start) -> None:
    running = await start(key="a-secret")
    expected = await running.client.generate("The ", max_bytes=20, seed=3, temperature=1.0)
    async with running.openai() as client:
        (listed,) = (await client.models.list()).data
        assert listed == await client.models.retrieve(running.run_id)
        wanted: dict[str, Any] = {"model": listed.id, "prompt": "The ", "max_tokens": 20, "seed": 3}
        whole = await client.completions.create(**wanted, logprobs=2)
        assert whole.choices[0].text == expected and whole.usage.total_tokens == 24
        assert len(whole.choices[0].logprobs.token_logprobs) == 20
        stream = await client.completions.create(**wanted, stream=True, extra_body={"top_k": 256})
        assert "".join([chunk.choices[0].text async for chunk in stream]) == expected
