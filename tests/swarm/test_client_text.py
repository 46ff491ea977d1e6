"""What the client gives: text and log-probabilities, the same as the model itself would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from blockswarm.model.layout import EMBEDDING
from blockswarm.model.mixing import mix_log_probs, sweep_noise
from blockswarm.model.readout import BlockReader
from blockswarm.model.sampling import sample_byte
from blockswarm.model.windows import plan_windows, window_start
from blockswarm.swarm.manifest import Manifest

TEXT = "Ein Wald aus Zeichen – näher betrachtet sind es Bäume, 数百本の木。" * 3


class LocalModel:
    """The whole model in this process, for comparison."""

    def __init__(self, info: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.manifest = Manifest.from_canonical(bytes.fromhex(info["manifest"]))
        table = self.manifest.verify_genesis(EMBEDDING)
        m = self.manifest
        self.readers = [
            BlockReader(m.model, m.recipe, block, m.verify_genesis(block), table) for block in range(m.model.blocks)
        ]

    def rows(self, text: bytes, readout: str, seed: int) -> np.ndarray:
        """Log-probabilities of every row, window by window."""
        found = []
        for start, stop, take in plan_windows(len(text), self.manifest.model.context):
            found.append(self._window(text[start:stop], start, readout, seed)[take:])
        return np.concatenate(found)

    def _window(self, window: bytes, start: int, readout: str, seed: int) -> np.ndarray:
        x = np.frombuffer(window, np.uint8)[None]
        if readout == "parallel":
            return mix_log_probs([reader.log_probs(x)[0] for reader in self.readers])
        z = sweep_noise(seed, start, len(window), self.manifest.model.dim)[None]
        for reader in self.readers:
            logp, z = reader.sweep_step(x, z)
        return logp[0]

    def write(self, prompt: bytes, count: int, readout: str, seed: int, **options: Any) -> bytes:
        """Text, one byte after the other, every time from scratch."""
        text = bytearray(prompt)
        for _ in range(count):
            start = window_start(len(text) - 1, self.manifest.model.context)
            row = self._window(bytes(text[start:]), start, readout, seed)[-1]
            text.append(sample_byte(row, seed=seed, position=len(text), **options))
        return bytes(text[len(prompt) :])


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
def test_log_probabilities_are_those_of_the_model_itself(swarm: Any, readout: str) -> None:
    found = swarm.client(
        f"""
        with SwarmClient.connect(peers) as client:
            table = client.logprobs({TEXT!r}, readout={readout!r}, seed=5)
            part = client.logprobs({TEXT!r}.encode()[:50], readout={readout!r}, seed=5)
            score = client.score({TEXT!r}, readout={readout!r}, seed=5)
        result(table=table.tolist(), same_start=bool(np.allclose(part, table[:50], atol=1e-5)),
               score=score.log_prob, bytes=score.bytes, dtype=str(table.dtype))
        """
    )
    local = LocalModel(swarm.info)
    text = TEXT.encode()
    expected = local.rows(text, readout, 5)
    assert found["dtype"] == "float32"
    np.testing.assert_allclose(np.array(found["table"]), expected, atol=2e-5)
    assert found["same_start"]
    scored = local.rows(b"\n" + text, readout, 5)
    targets = np.frombuffer(text, np.uint8)
    assert found["bytes"] == len(text)
    assert found["score"] == pytest.approx(float(scored[np.arange(len(text)), targets].sum()), rel=1e-4)


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
def test_a_seed_means_one_text_whatever_the_form_of_the_call(swarm: Any, readout: str) -> None:
    found = swarm.client(
        f"""
        options = dict(max_bytes=80, seed=3, temperature=1.0, readout={readout!r})
        with SwarmClient.connect(peers) as client:
            whole = client.generate("The ", **options)
            pieces = list(client.stream("The ", **options))
            again = client.generate(b"The ", **options)
            other = client.generate("The ", **(options | dict(seed=4)))
        result(whole=whole, pieces=pieces, again=again, other=other)
        """
    )
    expected = LocalModel(swarm.info).write(b"The ", 80, readout, 3, temperature=1.0)
    assert found["whole"] == expected.decode(errors="replace")
    assert "".join(found["pieces"]) == found["whole"] == found["again"] != found["other"]
    assert len(found["pieces"]) > 1


def test_prompt_longer_than_the_context_and_greedy_decoding(swarm: Any) -> None:
    found = swarm.client(
        f"""
        with SwarmClient.connect(peers) as client:
            result(text=client.generate({TEXT!r}, max_bytes=40, temperature=0.0))
        """
    )
    local = LocalModel(swarm.info)
    assert found["text"] == local.write(TEXT.encode(), 40, "parallel", 0, temperature=0.0).decode(errors="replace")


def test_empty_prompt_stands_for_a_newline_and_a_drawn_seed_is_reported(swarm: Any) -> None:
    found = swarm.client(
        """
        with SwarmClient.connect(peers) as client:
            first = client.generate(max_bytes=30)
            report = client.stats.last
            again = client.generate("\\n", max_bytes=30, seed=report.seed)
            result(first=first, again=again, report=[report.call, report.bytes, report.missing],
                   nothing=client.generate("x", max_bytes=0))
        """
    )
    assert found["first"] == found["again"]
    assert found["report"] == ["generate", 30, []]
    assert found["nothing"] == ""


def test_text_ends_before_a_stop_string_even_when_it_spans_pieces(swarm: Any) -> None:
    found = swarm.client(
        """
        with SwarmClient.connect(peers) as client:
            whole = client.generate("a", max_bytes=60, seed=11)
            mark = whole[20:24]
            cut = client.generate("a", max_bytes=60, seed=11, stop=mark)
            streamed = "".join(client.stream("a", max_bytes=60, seed=11, stop=["never seen", mark]))
        result(whole=whole, mark=mark, cut=cut, streamed=streamed)
        """
    )
    whole, mark = found["whole"], found["mark"]
    encoded = whole.encode()
    assert found["cut"] == found["streamed"]
    if "\ufffd" not in mark:
        assert found["cut"] == encoded[: encoded.index(mark.encode())].decode(errors="replace")


def test_options_out_of_range_are_refused_before_anything_is_asked(swarm: Any) -> None:
    found = swarm.client(
        """
        wrong = [dict(temperature=-1), dict(top_p=0), dict(seed=-1), dict(readout="magic"), dict(timeout=0),
                 dict(max_bytes=-1), dict(pin="yesterday")]
        said = []
        with SwarmClient.connect(peers) as client:
            for options in wrong:
                try:
                    client.generate("x", **options)
                except Exception as error:
                    said.append(f"{type(error).__name__}: {error}")
            try:
                client.logprobs(b"")
            except ClientError as error:
                said.append(str(error))
            requests = client.stats.requests
        result(said=said, requests=requests)
        """
    )
    for line, name in zip(
        found["said"],
        ["temperature", "top_p", "seed", "readout", "timeout", "max_bytes", "pin", "empty text"],
        strict=True,
    ):
        assert name in line
    assert found["requests"] == 0
