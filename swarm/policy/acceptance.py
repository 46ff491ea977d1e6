"""Which updates enter the average, with which weight: one decision, from the reducers' reports alone.

See docs/protocol.md §6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

from blockswarm.swarm.policy.robust import Robust, method_for


@dataclass(frozen=True)
class PartReport:
    """What one reducer saw of one sender's part."""

    norm2: float
    """Squared Euclidean norm of the part; meaningless when ``problem`` is set."""
    problem: str = ""
    """Empty when the part came whole, in time and finite; else the reason, in a word or two."""


@dataclass(frozen=True)
class Verdict:
    """The decision on a list of senders."""

    weights: dict[str, float]
    """Accepted senders and their weights (samples, capped), in list order."""
    rejected: dict[str, str]
    """Left-out senders and why."""
    clips: dict[str, float] = field(default_factory=dict)
    """Accepted senders whose updates are shortened, and to which share of themselves."""


def decide(
    samples: Mapping[str, float],
    reports: Sequence[Mapping[str, PartReport]],
    *,
    max_norm_ratio: float,
    max_weight_ratio: float,
    robust: Robust = "none",
    clip_ratio: float = math.inf,
    discounts: Mapping[str, float] | None = None,
) -> Verdict:
    """Accept every sender whose parts all came whole, finite and of a sane size.

    A sender is rejected when any reporting reducer found a problem, or when its update is longer than
    ``max_norm_ratio`` times what its peers' updates suggest for its number of samples: the median over the other
    senders ``j`` of ``‖Δ_j‖ · max(1, samples_i / samples_j)``. Samples are the sender's own word, so they excuse a
    longer update only up to ``max_norm_ratio`` times, and the median that caps the weights is the lower one: of two
    senders, neither can lift its own cap. Of those accepted, with ``robust`` "clip", one longer than ``clip_ratio``
    times the same suggestion is shortened to that.

    Contributors (those with a discount) are measured by the members beside them, and members never by them: both
    medians are over members, so that however many of them there are, and whatever they claim, none lifts its own bound
    or another's. What is left of their samples under the cap is discounted. Without an accepted member none is in.

    Parameters
    ----------
    samples : mapping
        Samples behind each listed sender's update, in list order.
    reports : sequence of mappings
        One mapping (sender → report) per reducer that reported. Reducers that did not report simply do not speak.
    max_norm_ratio, max_weight_ratio : float
        From the manifest: the bound above, and the cap of a weight as a multiple of the median weight.
    robust : str
        From the manifest; "trimmed" and "centered" are "clip" in small groups (see ``policy/robust.py``).
    clip_ratio : float
        From the manifest.
    discounts : mapping, optional
        Contributors among the senders, and the share of its samples that each may weigh (`staleness_discount`).

    Returns
    -------
    Verdict
        No one is accepted when nobody reported.
    """
    shares = discounts or {}
    rejected: dict[str, str] = {}
    norms: dict[str, float] = {}
    for sender, count in samples.items():
        seen = [report[sender] for report in reports if sender in report]
        problem = next((entry.problem for entry in seen if entry.problem), "")
        if not seen:
            rejected[sender] = "nothing arrived"
        elif problem:
            rejected[sender] = problem
        elif count <= 0 or shares.get(sender, 1.0) <= 0:
            rejected[sender] = "no samples"
        else:
            norms[sender] = math.sqrt(sum(entry.norm2 for entry in seen))
    longest: dict[str, float] = {}
    for sender, norm in norms.items():
        suggested = [
            norms[other] * min(max_norm_ratio, max(1.0, samples[sender] / samples[other]))
            for other in norms
            if other != sender and norms[other] > 0 and other not in shares
        ]
        usual = median(suggested) if suggested else math.inf
        longest[sender] = clip_ratio * usual
        if norm > max_norm_ratio * usual:
            rejected[sender] = f"norm {norm:.3g} is over {max_norm_ratio:g} times its peers' {usual:.3g}"
    accepted = {sender: float(samples[sender]) for sender in norms if sender not in rejected}
    members = [count for sender, count in accepted.items() if sender not in shares]
    if not members:
        return Verdict({}, rejected | dict.fromkeys(accepted, "no member's update to measure it by"))
    cap = max_weight_ratio * median_low(members)
    clips = {}
    if method_for(robust, len(accepted)) == "clip":
        clips = {sender: longest[sender] / norms[sender] for sender in accepted if norms[sender] > longest[sender]}
    weights = {sender: min(count, cap) * shares.get(sender, 1.0) for sender, count in accepted.items()}
    return Verdict(weights, rejected, clips)


def quorum(members: int) -> int:
    """Votes that certify a commit: more than half of the list (docs/protocol.md §6)."""
    return members // 2 + 1


def heavier(samples_a: int, digest_a: bytes, samples_b: int, digest_b: bytes) -> bool:
    """Whether state A wins over state B: more certified samples, on a tie the lower digest (docs/protocol.md §10)."""
    return (samples_a, [255 - byte for byte in digest_a]) > (samples_b, [255 - byte for byte in digest_b])
