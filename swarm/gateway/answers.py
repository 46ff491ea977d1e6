"""Answers in OpenAI's form: whole ones, the chunks of a stream, models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blockswarm.swarm.gateway.jobs import Order
from blockswarm.swarm.gateway.writer import Step

STREAM_END = b"data: [DONE]\n\n"


def as_json(value: Any) -> bytes:
    """UTF-8 JSON without spaces; never NaN."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def as_event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + as_json(value) + b"\n\n"


def fingerprint_of(pins: Iterable[Mapping[str, object] | None]) -> str | None:
    """Names the states that texts came from: the same seed and fingerprint, the same text. None before any is known."""
    known = sorted({json.dumps(pin, sort_keys=True) for pin in pins if pin is not None})
    return f"bs-{hashlib.sha256(''.join(known).encode()).hexdigest()[:16]}" if known else None


class Answer:
    """What is said about one request.

    Parameters
    ----------
    name : str
        Id of the answer.
    model : str
        Run id.
    created : int
        Unix seconds.
    order : Order
        What was asked for.
    """

    def __init__(self, name: str, model: str, created: int, order: Order) -> None:
        self._common = {"id": name, "object": "text_completion", "created": created, "model": model}
        self._order = order
        self._pin: Mapping[str, object] | None = None  # the last one
        self._named: str | None = None  # what it is called
        self.tokens = 0
        """Bytes generated so far."""

    def note(self, step: Step) -> None:
        """Count a step, whether it is told by itself or not."""
        self.tokens += step.tokens

    def chunk(self, step: Step) -> dict[str, Any]:
        """A chunk of a stream."""
        told = self._told([step])
        return told | {"usage": None} if self._order.include_usage else told

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk that comes last when usage is asked for."""
        return self._common | {"choices": [], "usage": self._usage()}

    def whole(self, steps: Iterable[Step]) -> dict[str, Any]:
        """The answer of all texts, each written in one step."""
        return self._told(sorted(steps, key=lambda step: step.index)) | {"usage": self._usage()}

    def _told(self, steps: Sequence[Step]) -> dict[str, Any]:
        return self._common | {
            "system_fingerprint": self._fingerprint([step.report.pin for step in steps]),
            "choices": [_choice(step) for step in steps],
        }

    def _fingerprint(self, pins: Sequence[Mapping[str, object] | None]) -> str | None:
        """The name of the states, which seldom change from chunk to chunk."""
        if len(pins) != 1:
            return fingerprint_of(pins)
        if pins[0] != self._pin:
            self._pin, self._named = pins[0], fingerprint_of(pins)
        return self._named

    def _usage(self) -> dict[str, int]:
        prompt = self._order.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": self.tokens, "total_tokens": prompt + self.tokens}


def _choice(step: Step) -> dict[str, Any]:
    choice = {
        "index": step.index,
        "text": step.text,
        "logprobs": step.logprobs,
        "finish_reason": step.finish_reason,
    }
    # Not in OpenAI's: it repeats the text, also when none was given.
    return choice | {"seed": step.report.seed} if step.finish_reason is not None else choice


def model_card(run_id: str, created: float) -> dict[str, Any]:
    """The one model there is."""
    return {"id": run_id, "object": "model", "created": int(created), "owned_by": "blockswarm"}
