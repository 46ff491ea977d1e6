"""A volunteer's events in words: pure functions from an event to the line a person reads; folding of repeats."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from blockswarm.swarm.manifest import EMBEDDING, subject_name

Event = Mapping[str, Any]
"""``{"time": Unix seconds, "event": name, …}`` as a volunteer emits it and ``--json-log`` writes it."""

FOLD_SECONDS = 60.0
"""A message that repeats is shown at most this often, s."""
FOLD_LIMIT = 256
"""Different messages remembered for folding; the oldest is forgotten first, so that memory stays bounded."""

PROBLEMS = ("error", "warning")
"""Events that carry a ``message`` and may repeat for as long as their cause lasts."""


def format_bytes(count: float) -> str:
    """``1.2 MB``: decimal units, two significant places after the first thousand."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_ce(value: object) -> str:
    """A cross-entropy in nats per byte with three places, ``–`` where there is none."""
    return f"{value:.3f}" if isinstance(value, float | int) and math.isfinite(value) else "–"


def short_id(peer_id: str) -> str:
    """The end of a peer id: all of ours begin alike (``12D3KooW``)."""
    return f"…{peer_id[-6:]}" if len(peer_id) > 8 else peer_id


def count(value: object) -> int:
    """The number in a field that holds either a number or the things it counts."""
    if isinstance(value, list | tuple | set | dict):
        return len(value)
    return value if isinstance(value, int) else 0


def describe(event: Event) -> str | None:
    """One line for ``event``, or ``None`` where a person has no use for one."""
    match event.get("event"):
        case "ready":
            return _ready(event)
        case "training":
            return "training: the first local step is done"
        case "trained":
            return f"training of block {event.get('block')} has ended with {event.get('samples')} samples: serving it"
        case "role":
            return _role(event)
        case "contribution":
            return None if event.get("subject") == EMBEDDING else _contribution(event)
        case "round":
            return None if event.get("subject") == EMBEDDING else _round(event)
        case "state":
            return _state(event)
        case "fork":
            return _fork(event)
        case "merged":
            name = subject_name(event["subject"])
            return f"merge of the lost line of {name}: {100 * event['share']:.0f} % of our share is in ({event['how']})"
        case "error" | "warning" as kind:
            return f"{kind}: {event.get('message', '')}{_repeats(event)}"
        case "stopped":
            return _leaving(event)
        case "left":
            return f"left; state kept in {event.get('state_dir', '')}"
    message = event.get("message")
    return f"{message}{_repeats(event)}" if message else None


def _ready(event: Event) -> str:
    parts = [f"ready: {event.get('run_id', '')} as {event.get('peer_id', '')}"]
    if event.get("block") is not None:
        parts.append(subject_name(event["block"]))
    addresses = event.get("addrs") or ()
    if addresses:
        parts.append(f"reachable at {addresses[0]}" + (f" and {len(addresses) - 1} more" if addresses[1:] else ""))
    return ", ".join(parts)


def _round(event: Event) -> str:
    number, block = event.get("round"), event.get("subject")
    if event.get("lone"):
        who = f"alone this round: no other replica of block {block} in round {number}"
    else:
        who = f"round {number}, block {block}: {together(event)}"
    parts = [who, outcome(event), f"held-out CE {format_ce(event.get('heldout_ce'))}"]
    if (rate := event.get("samples_per_s")) is not None:
        parts.append(f"{rate:.0f} samples/s")
    parts.append(
        f"up {format_bytes(event.get('bytes_sent') or 0)}, down {format_bytes(event.get('bytes_received') or 0)}"
    )
    if merge := event.get("merge"):
        parts.append(f"merged {100 * merge['accepted']:.0f} %, {100 * merge['left']:.0f} % left")
    if rejected := event.get("rejected"):
        parts.append("left out: " + ", ".join(f"{short_id(peer)} ({reason})" for peer, reason in rejected.items()))
    if contributed := event.get("contributed"):
        parts.append(
            "contributed: " + ", ".join(f"{short_id(peer)} ({age} rounds old)" for peer, age in contributed.items())
        )
    if kept_out := event.get("kept_out"):
        parts.append(
            "kept out: " + ", ".join(f"{short_id(peer)} until round {until}" for peer, until in kept_out.items())
        )
    return " · ".join(parts)


def _role(event: Event) -> str:
    took = f"a step takes {event['step_seconds']:.1f} s and an upload {event['upload_seconds']:.1f} s"
    if event.get("contributor"):
        return (
            f"contributor: {took}, a round {event['round_seconds']:.0f} s; from now on this peer trains over several "
            "rounds, and another brings its updates in"
        )
    return f"member again: {took}; from now on this peer takes part in every round"


def _contribution(event: Event) -> str:
    line = f"contribution to block {event.get('subject')}, from round {event.get('base_round')}"
    by = f"by {short_id(str(event.get('sponsor', '')))}"
    if event.get("counted"):
        line += f": brought into round {event.get('round')} {by}, {event.get('age')} rounds old"
    else:
        line += f": not in round {event.get('round')} {by} ({event.get('reason', '')})"
    return f"{line} · {event.get('samples')} samples · up {format_bytes(event.get('bytes') or 0)}"


def together(event: Event) -> str:
    """Who took part in a round, as one of them says it: ``2 others met, 3 updates accepted``."""
    others = max(0, count(event.get("met")) - 1)  # a peer meets itself, too
    met = "nobody else met" if not others else f"{others} other{'s' if others > 1 else ''} met"
    accepted = count(event.get("accepted"))
    return f"{met}, {accepted or 'no'} update{'' if accepted == 1 else 's'} accepted"


def outcome(event: Event) -> str:
    """What came of a round: ``committed 1a2b3c4d`` or why not."""
    if event.get("committed"):
        return f"committed {str(event.get('digest', ''))[:8]}"
    reason = event.get("reason")
    return f"not committed ({reason})" if reason else "not committed, the work is carried over"


def _state(event: Event) -> str:
    name = subject_name(event["subject"])
    line = f"state of {name}: round {event.get('round')}, {str(event.get('digest', ''))[:8]}"
    if (seconds := event.get("seconds")) is not None:
        line += f", fetched in {seconds:.1f} s"
    return line


def _fork(event: Event) -> str:
    lost, name = event["won"] == "other", subject_name(event["subject"])
    own = f"ours ({event['own'][:8]}, round {event['own_round']}, {event['own_samples']} samples since)"
    other = f"another ({event['other'][:8]}, round {event['other_round']}, {event['other_samples']})"
    line = f"fork of {name} after {event['ancestor'][:8]}: {own} against {other}; {'theirs' if lost else 'ours'} wins"
    if not lost:
        return line
    if not event["merging"]:
        return f"{line}, nothing of ours is merged: {event['reason']}"
    share = 100 * event["line_share"] * event["own_share"] * event["clip"]
    return f"{line}, {share:.0f} % of the work of ours is this peer's to merge (norm {event['norm']:.3g})"


def _leaving(event: Event) -> str | None:
    if event.get("failed"):
        return None  # the command line ends with the reason; once is enough
    reason = event.get("reason")
    return f"leaving: {reason}" if reason else "leaving"


def _repeats(event: Event) -> str:
    return f" (repeated {event['repeated']} times)" if event.get("repeated") else ""


class Folder:
    """Lets a message through once, then counts its repeats and reports the number at most every `FOLD_SECONDS`.

    Only events with a ``message`` fold; equal means the same event name and the same message.
    """

    def __init__(self, seconds: float = FOLD_SECONDS, limit: int = FOLD_LIMIT) -> None:
        self._seconds = seconds
        self._limit = limit
        self._seen: OrderedDict[tuple[str, str], tuple[float, Event, int]] = OrderedDict()

    def feed(self, event: Event, now: float) -> list[Event]:
        """What to show now that ``event`` happened at ``now`` (s): due counts, and the event unless it repeats."""
        shown = self._due(now)
        if "message" not in event:
            return [*shown, event]
        key = (str(event.get("event")), str(event["message"]))
        if key in self._seen:
            since, _, repeated = self._seen[key]
            self._seen[key] = (since, event, repeated + 1)
            return shown
        self._seen[key] = (now, event, 0)
        if len(self._seen) > self._limit:
            _, (_, oldest, repeated) = self._seen.popitem(last=False)
            shown += [{**oldest, "repeated": repeated}] if repeated else []
        return [*shown, event]

    def flush(self) -> list[Event]:
        """The counts not shown yet; for the end of the program."""
        return self._due(math.inf)

    def _due(self, now: float) -> list[Event]:
        due = [key for key, (since, _, _) in self._seen.items() if now - since >= self._seconds]
        shown: list[Event] = []
        for key in due:
            _, event, repeated = self._seen.pop(key)
            if repeated:
                shown.append({**event, "repeated": repeated})
                # It goes on: stay quiet for another period instead of letting the next one through as if it were new.
                if now < math.inf:
                    self._seen[key] = (now, event, 0)
        return shown
