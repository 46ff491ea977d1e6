"""Counts for Prometheus: what came in over HTTP, and what the client did in the swarm for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from blockswarm.swarm.gateway.limits import Gate
from blockswarm.swarm.report import ClientStats

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

PREFIX = "blockswarm_gateway"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

OF_THE_CLIENT = {
    "requests": "Serving requests sent to holders",
    "failures": "Serving requests that ended in an error",
    "hedges": "Requests sent beside a slow one",
    "refused_answers": "Answers of holders that broke a rule",
    "replaced": "Holders that another one took over from",
    "round_trips": "Times holders were waited for one after the other",
    "drafted": "Bytes guessed",
    "accepted": "Guessed bytes that stand in a text",
    "bytes_sent": "Bytes sent to the swarm",
    "bytes_received": "Bytes received from the swarm",
}
"""Fields of `ClientStats` that are told, and what they are."""


class Metrics:
    """Counters of one gateway, in a registry of their own.

    Parameters
    ----------
    gate : Gate
        Whose load is told.
    stats : callable
        Totals of the client.
    """

    def __init__(self, gate: Gate, stats: Callable[[], ClientStats]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(f"{PREFIX}_requests", "Requests answered", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            f"{PREFIX}_seconds", "Seconds until an answer's end", ["route"], buckets=SECONDS, registry=registry
        )
        self.first_byte = Histogram(
            f"{PREFIX}_first_byte_seconds", "Seconds to a text's first byte", buckets=SECONDS, registry=registry
        )
        self.tokens = Counter(f"{PREFIX}_tokens", "Bytes of prompts and of texts", ["kind"], registry=registry)
        running = Gauge(f"{PREFIX}_running", "Texts being written", registry=registry)
        running.set_function(lambda: gate.running)
        waiting = Gauge(f"{PREFIX}_waiting", "Texts waiting for their turn", registry=registry)
        waiting.set_function(lambda: gate.waiting)
        self._registry.register(_OfTheClient(stats))

    def text(self) -> bytes:
        """All of it, in Prometheus' format."""
        return generate_latest(self._registry)


class _OfTheClient(Collector):
    def __init__(self, stats: Callable[[], ClientStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[CounterMetricFamily]:
        stats = self._stats()
        for name, what in OF_THE_CLIENT.items():
            yield CounterMetricFamily(f"blockswarm_client_{name}", what, value=getattr(stats, name))
