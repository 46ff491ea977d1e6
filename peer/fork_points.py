"""Fork points: certified states that are kept because another line may have split from ours after them."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import numpy.typing as npt

from blockswarm.clock import Clock
from blockswarm.peer.fork_files import ForkFiles
from blockswarm.peer.line import Line
from blockswarm.peer.states import State, StateStore
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.policy.forks import Pin, pins_to_drop

log = logging.getLogger(__name__)

MOST_PINS = 2
"""States kept of a subject."""

PIN_SECONDS = 7 * 86_400.0
"""Who has not come back by then is not waited for."""

Float32 = npt.NDArray[np.float32]


class ForkPoints:
    """The last states that were certified together with members that have been missing since.

    Blocking reads and writes: call the methods in a thread, one at a time for a subject.

    Parameters
    ----------
    manifest : Manifest
        The run.
    store : StateStore
        The newest states, which are in memory anyway.
    clock : Clock
        The swarm's time.
    files : ForkFiles or None
        Where they are kept; without them only what ``store`` has can be found again.
    """

    def __init__(self, manifest: Manifest, store: StateStore, clock: Clock, files: ForkFiles | None) -> None:
        self._manifest = manifest
        self._store = store
        self._clock = clock
        self._files = files
        self._pins: dict[int, dict[bytes, Pin]] = {}

    def load(self, subject: int, line: Line) -> None:
        """Take up what was kept before a restart, as far as it is in our line."""
        pins = self._pins[subject] = {}
        if self._files is None:
            return
        for kind in self._files.kinds(subject, "point-"):
            if (kept := self._files.read(kind, subject)) is None:
                continue
            notes = kept[1]
            digest = bytes.fromhex(notes["digest"])
            pins[digest] = Pin(int(notes["round"]), frozenset(notes["lost"]), float(notes["since"]))
        self.keep_of(subject, line)

    def note(self, old: State, lost: frozenset[str], there: frozenset[str]) -> None:
        """A round was made from ``old`` without its members ``lost``, and with those that are ``there``."""
        subject = old.subject
        pins = self._pins.setdefault(subject, {})
        for digest, pin in list(pins.items()):
            pins[digest] = dataclasses.replace(pin, lost=pin.lost - there)
        new = bool(lost) and old.round > 0 and self._files is not None  # the genesis can always be made again
        if new:
            pins[old.digest] = Pin(old.round, lost, self._clock.now())
        self._clear(subject)
        if new and old.digest in pins and self._files is not None:
            pin = pins[old.digest]
            notes = {"digest": old.digest.hex(), "round": pin.round, "lost": sorted(pin.lost), "since": pin.since}
            try:
                self._files.keep(_kind(old.digest), subject, old.values, notes)
            except OSError as error:
                del pins[old.digest]
                log.warning("the state of round %d is not kept for a merge: %s", old.round, error)

    def keep_of(self, subject: int, line: Line) -> None:
        """Let go of states that are not in ``line``."""
        pins = self._pins.setdefault(subject, {})
        for digest in [digest for digest in pins if line.samples_at(digest) is None]:
            self._drop(subject, digest)
        self._clear(subject)

    def values(self, subject: int, digest: bytes) -> Float32 | None:
        """The values of a state of our line, if they are still here."""
        if (state := self._store.get(subject, digest)) is not None:
            return state.values
        if digest == self._manifest.genesis_digest(subject):
            return State.genesis(self._manifest, subject).values
        if self._files is None or digest not in self._pins.get(subject, {}):
            return None
        kept = self._files.read(_kind(digest), subject)
        return kept[0] if kept is not None and kept[1].get("digest") == digest.hex() else None

    def _clear(self, subject: int) -> None:
        pins = self._pins[subject]
        for digest in pins_to_drop(pins, self._clock.now(), most=MOST_PINS, seconds=PIN_SECONDS):
            self._drop(subject, digest)

    def _drop(self, subject: int, digest: bytes) -> None:
        del self._pins[subject][digest]
        if self._files is not None:
            self._files.drop(_kind(digest), subject)


def _kind(digest: bytes) -> str:
    return f"point-{digest[:8].hex()}"
