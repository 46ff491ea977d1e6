"""Whatever holders keep of a text, or lose, or never had: the text is the one that decoding byte by byte gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blockswarm.swarm.drafting.drafting import PacedDrafting
from blockswarm.swarm.options import Writing
from tests.swarm.exact import BYTES, HOLDERS, PROMPTS, Fixed, Scripted, plain_text, small_model, write
from tests.swarm.holding import Model, Swarm


@pytest.fixture(scope="module")
def model() -> Model:
    """Two blocks that are not trained but have opinions."""
    return small_model()


@pytest.fixture(scope="module")
def plain(model: Model) -> Callable[..., bytes]:
    """What decoding byte by byte gives, every window by itself; prompt and output."""
    return plain_text(model)


def without_sessions(*names: str) -> Callable[[Swarm], None]:
    def spoil(swarm: Swarm) -> None:
        for name in names:
            swarm.holders[name].has_sessions = swarm.holders[name].chains = False

    return spoil


def forgetful(every: int) -> Callable[[Swarm], None]:
    """Holders that lose all their sessions after so many answers each."""

    def spoil(swarm: Swarm) -> None:
        for holder in swarm.holders.values():

            def seconds(size: int, holder: Any = holder) -> float:
                if len(holder.sent) % every == 0:
                    holder.forget()
                return 0.001

            holder.seconds = seconds

    return spoil


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
@pytest.mark.parametrize(
    "spoil",
    [without_sessions(*HOLDERS), without_sessions("0a", "1a"), forgetful(1), forgetful(2), forgetful(5)],
    ids=["no-sessions", "some-sessions", "forgets-always", "forgets-often", "forgets-at-times"],
)
def test_what_holders_keep_or_lose_changes_nothing(
    model: Model, plain: Callable[..., bytes], readout: str, spoil: Callable[[Swarm], None]
) -> None:
    for seed, prompt in enumerate(PROMPTS):
        asked = {"max_bytes": BYTES, "seed": seed, "temperature": 1.0, "readout": readout}
        expected = plain(prompt, **asked)
        script = Scripted(expected, wrong=6)
        for drafting in (lambda: None, lambda s=script: PacedDrafting(s, Fixed(9))):
            found, _, _ = write(model, prompt, Writing(**asked), drafting, spoil)
            assert found == expected


@pytest.mark.parametrize("readout", ["parallel", "sweep"])
def test_holders_are_sent_a_text_once(model: Model, plain: Callable[..., bytes], readout: str) -> None:
    """Each byte, and z of it, travels once in a window, and once more in the next: they overlap by half."""
    asked = {"max_bytes": BYTES, "seed": 1, "temperature": 1.0, "readout": readout}
    plain(b"x" * 31, **asked)
    sizes = {}
    for kind, spoil in (("sessions", lambda swarm: None), ("windows", without_sessions(*HOLDERS))):
        _, _, swarm = write(model, b"x" * 31, Writing(**asked), spoil=spoil)
        sizes[kind] = [size for holder in swarm.holders.values() for _, size in holder.sent]
    small = 200 if readout == "parallel" else 400
    assert sorted(sizes["sessions"])[len(sizes["sessions"]) // 2] < small
    if readout == "sweep":
        assert sum(sizes["sessions"]) < 0.5 * sum(sizes["windows"])


def test_a_rejected_draft_is_forgotten_by_the_holders_too(model: Model, plain: Callable[..., bytes]) -> None:
    asked = {"max_bytes": BYTES, "seed": 8, "temperature": 1.0}
    expected = plain(b"The ", **asked)
    for wrong in (2, 3, 7):
        found, report, swarm = write(
            model, b"The ", Writing(**asked), lambda w=wrong: PacedDrafting(Scripted(expected, w), Fixed(12))
        )
        assert found == expected
        whole = [method for holder in swarm.holders.values() for method, _ in holder.sent if method == "logprobs"]
        assert len(whole) == 2 * report.unsettled  # nothing was asked for by whole windows but close calls
