"""Lines: the chain of certificates from a state back to earlier ones, and where two of them split."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from blockswarm.dht import packing
from blockswarm.dht.errors import RpcError, RpcRefused
from blockswarm.dht.rpc import Reply, Request
from blockswarm.peer.giving import Registrar, checked
from blockswarm.peer.states import State
from blockswarm.peer.transfer import Call
from blockswarm.swarm.contribution import Contribution
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.messages import LineRequest
from blockswarm.swarm.policy.contributing import age_of, staleness_discount
from blockswarm.swarm.policy.forks import Brought, LineRound
from blockswarm.swarm.statements import Certificate, MemberList, StatementError

MAX_LINKS = 2048
"""Links kept of a line, and followed of another one."""

MAX_LINE_BYTES = 4 << 20
"""Bytes of certificates kept of a line; the oldest go first."""

PAGE_LINKS = 64
PAGE_BYTES = 1 << 20
"""Most of a line that one answer brings."""

PAGE_SECONDS = 5.0


@dataclass(frozen=True)
class Link:
    """One certified round: the state it made, and the state it made it from."""

    subject: int
    round: int
    digest: bytes
    parent: bytes
    samples: int
    """Certified samples since the genesis."""
    listed: dict[str, int]
    """Samples that its members announced."""
    brought: tuple[Brought, ...]
    """What they brought in of contributors."""
    raw: bytes
    """The certificate."""

    @classmethod
    def open(cls, raw: object, manifest: Manifest) -> Link:
        """Read a certificate from anyone: a signature per vote and contributor is verified. Raises `StatementError`."""
        certificate = Certificate.open(raw, manifest.digest)
        members = certificate.members
        return cls(
            members.subject,
            members.round,
            certificate.digest,
            members.parent,
            certificate.samples,
            dict(members.samples),
            _brought(members, manifest),
            certificate.raw,
        )


def _brought(members: MemberList, manifest: Manifest) -> tuple[Brought, ...]:
    words = [(host, Contribution.open(raw, manifest.digest)) for host, raw in members.guests.values()]
    carried = manifest.rounds.carry_discount
    return tuple(
        Brought(
            members.members[host], word.samples, staleness_discount(age_of(members.round, word.base_round), carried)
        )
        for host, word in words
    )


@dataclass
class Line:
    """A stretch of certified rounds without a gap, from a root that is known by name alone up to a head."""

    root: bytes
    """Digest of the state that the first link builds on."""
    root_round: int
    root_samples: int
    links: deque[Link] = field(default_factory=deque)
    size: int = 0

    @classmethod
    def beginning(cls, state: State) -> Line:
        """A line of which no more than its head is known."""
        return cls(state.digest, state.round, state.samples)

    @property
    def head(self) -> bytes:
        """Digest of the newest state."""
        return self.links[-1].digest if self.links else self.root

    def samples_at(self, digest: bytes) -> int | None:
        """Certified samples of a state of this line; ``None`` when it is not known to be one."""
        if digest == self.root:
            return self.root_samples
        return next((link.samples for link in reversed(self.links) if link.digest == digest), None)

    def base_problem(self, round_number: int, digest: bytes) -> str:
        """Why this is none of our states; empty when it is one, or when it is older than what we know.

        Who came lately cannot tell; another reducer of the group can, and one word against an update is enough.
        """
        if round_number < self.root_round:
            return ""
        known = next((link.digest for link in reversed(self.links) if link.round == round_number), None)
        if round_number == self.root_round:
            known = self.root
        if known is None:
            return f"unknown base: no state of round {round_number} was certified here"
        return "" if known == digest else f"unknown base: the state of round {round_number} is another one here"

    def since(self, digest: bytes) -> list[Link]:
        """The links after a state of this line, oldest first."""
        links = list(self.links)
        if digest == self.root:
            return links
        return links[1 + max(index for index, link in enumerate(links) if link.digest == digest) :]

    def append(self, link: Link) -> None:
        """Go on by one round; the oldest ones are forgotten."""
        if link.parent != self.head:
            raise ValueError("the link does not build on the head of this line")
        self.links.append(link)
        self.size += len(link.raw)
        while len(self.links) > MAX_LINKS or self.size > MAX_LINE_BYTES:
            first = self.links.popleft()
            self.size -= len(first.raw)
            self.root, self.root_round, self.root_samples = first.digest, first.round, first.samples

    def cut_after(self, digest: bytes) -> None:
        """Go back to an earlier state of this line."""
        while self.head != digest:
            self.size -= len(self.links.pop().raw)

    def page(self, digest: bytes) -> list[bytes]:
        """Certificates from a state of this line backwards, as many as one answer takes; empty when there is none."""
        found: list[bytes] = []
        size = 0
        for link in reversed(self.links):
            if found or link.digest == digest:
                size += len(link.raw) + 8
                if len(found) == PAGE_LINKS or size > PAGE_BYTES:
                    break
                found.append(link.raw)
        return found

    def pack(self) -> bytes:
        """As it is kept on disk."""
        root = [self.root, self.root_round, self.root_samples]
        return packing.pack({"root": root, "links": [link.raw for link in self.links]})

    @classmethod
    def unpack(cls, data: bytes, manifest: Manifest, subject: int) -> Line:
        """Read what `pack` wrote, trusting nothing of it. Raises `StatementError`."""
        try:
            kept = packing.unpack_map(data, max_bytes=2 * MAX_LINE_BYTES)
            digest, number, samples = kept["root"]
            raws = list(kept["links"])
        except (packing.PackingError, KeyError, TypeError, ValueError) as error:
            raise StatementError("a line that cannot be read") from error
        if not (isinstance(digest, bytes) and type(number) is int and type(samples) is int):
            raise StatementError("a line that cannot be read")
        line = cls(digest, number, samples)
        links = [Link.open(raw, manifest) for raw in raws[:MAX_LINKS]]
        if any(link.subject != subject for link in links):
            raise StatementError("a line of another subject")
        check_chain(links, samples)
        for link in links:
            if link.parent != line.head:
                raise StatementError("a line with a gap")
            line.append(link)
        return line


def rounds_of(links: Sequence[Link], samples: int) -> list[LineRound]:
    """What each link gained, oldest first, from a state with so many samples."""
    gained = []
    for link in links:
        gained.append(LineRound(link.listed, link.samples - samples, link.brought))
        samples = link.samples
    return gained


def check_chain(links: Sequence[Link], samples: int) -> None:
    """Raise `StatementError` when a link gains less than nothing, or more than was announced for it."""
    for entry in rounds_of(links, samples):
        if not 0 <= entry.gained <= entry.announced:
            raise StatementError("a line certifies more samples than its members announced")


def serve_lines(host: Registrar, lines: dict[int, Line]) -> None:
    """Answer ``state.line`` from ``lines``, by subject."""

    async def answer(request: Request) -> Reply:
        wanted = checked(LineRequest.parse, request.body)
        line = lines.get(wanted.subject)
        page = line.page(wanted.digest) if line is not None else []
        if not page:
            raise RpcRefused("unknown-state", f"nothing is known here of that line of subject {wanted.subject}")
        return Reply({}, packing.pack(page))

    host.register("state.line", answer)


class LineAsker:
    """Follows other lines back to ours.

    Parameters
    ----------
    call : Call
        How peers are asked.
    manifest : Manifest
        The run.
    """

    def __init__(self, call: Call, manifest: Manifest) -> None:
        self._call = call
        self._manifest = manifest
        self.bytes_received = 0

    async def trace(
        self, subject: int, digest: bytes, certificate: bytes, own: Line, holders: Sequence[str]
    ) -> list[Link]:
        """The links from the last state that is also in ``own``, the common ancestor, to ``digest``; oldest first.

        Every link is proven by its certificate, names the one before, and gains no more than was announced for it.

        Raises
        ------
        StatementError
            With why no common state can be found.
        """
        link = await asyncio.to_thread(Link.open, certificate, self._manifest)
        if (link.subject, link.digest) != (subject, digest):
            raise StatementError("its certificate is of another state")
        links = [link]
        while (samples := own.samples_at(links[-1].parent)) is None:
            if links[-1].round <= own.root_round + 1:
                raise StatementError("it split from ours before anything that is known here of our line")
            if len(links) >= MAX_LINKS:
                raise StatementError(f"it has nothing in common with ours in {MAX_LINKS} rounds")
            for link in await self._page(subject, links[-1], holders):
                links.append(link)
                if own.samples_at(link.parent) is not None:
                    break  # a page goes on beyond the ancestor
        links.reverse()
        check_chain(links, samples)
        return links

    async def _page(self, subject: int, after: Link, holders: Sequence[str]) -> list[Link]:
        """Links before ``after``, newest first."""
        reason = "nobody was asked"
        for peer_id in holders:
            body = LineRequest(subject, after.parent).to_body()
            try:
                reply = await self._call(peer_id, "state.line", body, max_blob=PAGE_BYTES + 1024, timeout=PAGE_SECONDS)
                self.bytes_received += len(reply.blob)
                return await asyncio.to_thread(self._read, subject, after, bytes(reply.blob))
            except (RpcError, StatementError) as error:
                reason = f"{peer_id}: {error}"
        raise StatementError(f"its line is not known ({reason})")

    def _read(self, subject: int, after: Link, data: bytes) -> list[Link]:
        try:
            raws = packing.unpack(data, max_bytes=PAGE_BYTES + 1024)
        except packing.PackingError as error:
            raise StatementError("a line that cannot be read") from error
        if not isinstance(raws, list) or not 1 <= len(raws) <= PAGE_LINKS:
            raise StatementError("a line that cannot be read")
        links: list[Link] = []
        for raw in raws:
            link = Link.open(raw, self._manifest)
            before = links[-1] if links else after
            if (link.subject, link.digest) != (subject, before.parent) or link.round >= before.round:
                raise StatementError("a line whose links do not fit each other")
            links.append(link)
        return links
