"""What a line may be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.hosts import FREE, HostsError, Link


def test_a_free_line_has_neither_rate_nor_queue() -> None:
    assert Link() == FREE
    assert FREE.bytes_per_second == FREE.queue_limit == math.inf


def test_a_queue_of_no_stated_size_holds_a_tenth_of_a_second_but_a_small_one_64_kib() -> None:
    assert Link(rate_mbit=80).queue_limit == 1_000_000
    assert Link(rate_mbit=1).queue_limit == 65_536
    assert Link(rate_mbit=80, queue_bytes=5000).queue_limit == 5000


def test_its_fields_make_an_equal_one() -> None:
    link = Link(delay_ms=40, rate_mbit=20, queue_bytes=9000, loss=0.01)
    assert Link(**link.to_dict()) == link


def test_it_can_be_read() -> None:
    assert str(Link(delay_ms=40, rate_mbit=20, loss=0.01)) == "40 ms, 20 Mbit/s, queue 250000 bytes, loss 0.01"
    assert str(FREE) == "free"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"delay_ms": -1}, "delay_ms is -1"),
        ({"delay_ms": math.nan}, "delay_ms is nan"),
        ({"rate_mbit": 0}, "rate_mbit is 0"),
        ({"rate_mbit": math.inf}, "rate_mbit is inf"),
        ({"queue_bytes": 1000}, "queue_bytes without rate_mbit"),
        ({"rate_mbit": 1, "queue_bytes": 0}, "queue_bytes is 0"),
        ({"loss": 1.1}, "loss is 1.1"),
        ({"loss": math.nan}, "loss is nan"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(HostsError, match=said):
        Link(**fields)
