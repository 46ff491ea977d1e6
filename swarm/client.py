"""A client of a swarm: text from a model that volunteers hold, without torch and without p2pd.

>>> from blockswarm.swarm import SwarmClient
>>> with SwarmClient.connect("bootstrap_peers.txt") as swarm:
...     print(swarm.generate("The ", max_bytes=64, seed=1))

:class:`SwarmClient` blocks, and works in scripts, in notebooks and inside a running event loop alike;
:class:`AsyncSwarmClient` has the same names for asyncio. Both verify what they are told: the manifest by its hash,
records by their signatures, answers by their form.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from blockswarm.swarm import operations, status
from blockswarm.swarm.answers import Float32
from blockswarm.swarm.async_client import AsyncSwarmClient
from blockswarm.swarm.client_base import (
    CONNECT_TIMEOUT,
    ClientBase,
    Peers,
    close,
    fill_cache,
    open_cache,
    read_peers,
    start,
    warn_incomplete,
)
from blockswarm.swarm.deadline import Deadline, check_timeout
from blockswarm.swarm.exporting import EXPORT_SECONDS, Export
from blockswarm.swarm.generation import Piece
from blockswarm.swarm.model_card import ModelSummary
from blockswarm.swarm.operations import Holder
from blockswarm.swarm.options import (
    Progress,
    Reading,
    ReadingOptions,
    Writing,
    WritingOptions,
    as_bytes,
)
from blockswarm.swarm.score import Score, Spans
from blockswarm.swarm.status import SwarmStatus

__all__ = ["AsyncSwarmClient", "SwarmClient"]


class SwarmClient(ClientBase):
    """A blocking client. Make one with :meth:`connect`; use it as a context manager, or :meth:`close` it.

    Calls from several threads are fine; each is a session of its own.
    """

    @classmethod
    def connect(
        cls,
        peers: Peers,
        *,
        run: str | None = None,
        timeout: float | Deadline = CONNECT_TIMEOUT,
        cache: str | Path | None = None,
        counts: str | Path | None = None,
    ) -> Self:
        """Reach a swarm.

        Parameters
        ----------
        peers : str, Path or sequence of str
            A peers file, a multiaddr ending in ``/p2p/PEER``, or several of them. One living peer is enough.
        run : str, optional
            Run id, or the manifest's digest in hex; needed when the peers know several runs.
        timeout : float or Deadline
            Seconds; a `Deadline` counts connecting and later calls together.
        cache : str or Path, optional
            File in which the client remembers peers it has met; they are tried after ``peers``.
        counts : str or Path, optional
            File of the run's n-gram counts, where it has some: then nobody is asked for their rows. By default what an
            earlier ``draft="counts"`` has left in the cache.

        Raises
        ------
        ConnectError
            When nobody answers, with each peer's reason.
        ClientError
            When there are several runs and none was named; lists them.
        ManifestError
            When peers send something else than the run's manifest.
        PeersFileError, AddressError
            When ``peers`` is malformed.
        ArgumentError
            When ``counts`` is another file than the manifest names.
        """
        known = open_cache(cache)
        addresses = read_peers(peers, known)
        thread, core = start()
        try:
            thread.run(core.connect, addresses, run, check_timeout(timeout), counts)
            fill_cache(known, core)
        except BaseException:
            close(thread, core)
            raise
        return cls(thread, core)

    def generate(self, prompt: str | bytes = "", **options: Unpack[WritingOptions]) -> str:
        """Text that follows ``prompt``.

        Parameters
        ----------
        prompt : str or bytes
            Not repeated in the answer. Empty stands for a newline.
        **options
            ``max_bytes`` : int, 64 — most bytes to add; bytes that are not UTF-8 come out as U+FFFD.
            ``temperature`` : float, 0.7 — 0 takes the likeliest byte. ``top_k`` : int, 0 (off) and
            ``top_p`` : float, 1 (off) — keep only the likeliest bytes.
            ``seed`` : int, optional — the same seed and states give the same text whichever holders answer; drawn at
            random when absent and reported in ``stats.last.seed``.
            ``stop`` : str, bytes or several — the text ends before the first of these.
            ``best_effort`` : bool, False — go on without a block nobody serves (parallel readout); the answer is marked
            by a warning and by ``stats.last.missing``.
            ``readout`` : "parallel" (all blocks at once, averaged) or "sweep" (the paper's chain from block to block).
            "one-sweep" draws all bytes in one traversal: a measurement, the text has no quality.
            ``draft`` : who guesses ahead, so that a round trip yields several bytes: "ngram" (from the text itself,
            from earlier answers, and from the run's counts where they are here), "counts" (these, fetched once),
            "block" (one block, fetched once and run here), the path of an n-gram file, or "none". The text does not
            depend on it.
            ``timeout`` : float or Deadline, 120 — seconds for the whole text; a ``Deadline`` is one moment for
            several calls, connecting among them.
            ``pin`` : states to take it from: ``"genesis"`` or an earlier ``stats.last.pin``; by default those most
            holders have.

        Raises
        ------
        NoHolderError
            Naming the block nobody serves.
        DeadlineError
            When the time is up.
        UntrustedAnswerError
            When every holder of a block breaks the rules.
        """
        text, report = self._thread.run(operations.generate, self._core, as_bytes(prompt), Writing(**options))
        warn_incomplete(report)
        return text

    def stream(self, prompt: str | bytes = "", **options: Unpack[WritingOptions]) -> Iterator[str]:
        """The same text in pieces, each as soon as it is certain; arguments as for :meth:`generate`."""
        pieces = self._pieces(as_bytes(prompt), Writing(**options))
        return (piece.text for piece in pieces if piece.text)

    def pieces(
        self, prompt: str | bytes = "", *, rows: bool = False, whole: bool = False, **options: Unpack[WritingOptions]
    ) -> Iterator[Piece]:
        """The same text with all there is to know about it: bytes, how the call is going, why it ended.

        Parameters
        ----------
        prompt : str or bytes
            As for :meth:`generate`.
        rows : bool
            Keep the log-probabilities each byte was drawn from; they cost a kilobyte for each.
        whole : bool
            All of the text as one piece, which is the last; nothing is told before the end.
        **options
            As for :meth:`generate`.

        Yields
        ------
        Piece
            At least one byte each, except that the last one may be empty; ``piece.last`` tells it.
        """
        return self._pieces(as_bytes(prompt), Writing(**options, rows=rows), whole=whole)

    def _pieces(self, prompt: bytes, asked: Writing, *, whole: bool = False) -> Generator[Piece, None, None]:
        generation = self._thread.run(operations.begin, self._core, prompt, asked)
        told = 0
        last = False
        while not last:
            piece = self._thread.run(generation.whole if whole else generation.next_piece)
            told, last = warn_incomplete(generation.report, told=told), piece.last
            yield piece

    def logprobs(self, text: str | bytes, **options: Unpack[ReadingOptions]) -> Float32:
        """Log-probabilities of what may follow each prefix of ``text``.

        Parameters
        ----------
        text : str or bytes
            At least one byte.
        **options
            ``readout``, ``pin`` — as for :meth:`generate`; the parallel readout answers without a block nobody serves,
            and says so.
            ``seed`` : int, 0 — of the sweep's noise.
            ``timeout`` : float or Deadline, 600 — seconds.
            ``progress`` : callable — called as ``progress(rows done, rows in total)`` from the client's thread.

        Returns
        -------
        ndarray of float32, shape [len(text in bytes), 256]
            Natural log; row ``i`` predicts the byte after ``text[: i + 1]``.
        """
        table, report = self._thread.run(operations.logprobs, self._core, as_bytes(text), Reading(**options))
        warn_incomplete(report)
        return table

    def score(
        self,
        text: str | bytes,
        *,
        given: str | bytes = b"",
        spans: Spans | None = None,
        **options: Unpack[ReadingOptions],
    ) -> Score:
        """How likely ``text`` is.

        Parameters
        ----------
        text : str or bytes
            What is scored.
        given : str or bytes
            What it follows; empty stands for a newline.
        spans : sequence of (int, int), optional
            Score only these ranges ``[begin, end)`` of the bytes of ``text``, each with all before it as context.
        **options
            As for :meth:`logprobs`.
        """
        work = (operations.score, self._core, as_bytes(text), as_bytes(given), spans, Reading(**options))
        result, report = self._thread.run(*work)
        warn_incomplete(report)
        return result

    def export(
        self,
        folder: str | Path,
        *,
        force: bool = False,
        timeout: float | Deadline = EXPORT_SECONDS,
        progress: Progress | None = None,
    ) -> ModelSummary:
        """Write the whole model, the newest certified state of every block, into a folder; `LocalModel` reads it.

        Parameters
        ----------
        folder : str or Path
            Must not exist, or be empty. It appears in one step, when all of it has arrived and was verified.
        force : bool
            Replace an older model folder; anything else is never overwritten.
        timeout : float or Deadline
            Seconds.
        progress : callable, optional
            Called as ``progress(bytes done, bytes in total)`` from the client's thread.

        Raises
        ------
        NoHolderError
            Naming a block nobody holds.
        ModelFolderError
            When the folder holds something else or cannot be written.
        DeadlineError
            When the time is up.
        """
        return self._thread.run(Export(self._core, progress).run, folder, force, check_timeout(timeout))

    def holders(self, *, fresh: bool = True) -> dict[int, list[Holder]]:
        """Everybody on record for each block; ``fresh=False`` is content with what was known seconds ago."""
        return self._thread.run(operations.holders, self._core, fresh)

    def status(self) -> SwarmStatus:
        """How far training is, who holds what, and how fresh that knowledge is."""
        return self._thread.run(status.survey, self._core)

    def close(self) -> None:
        """Drop all connections and end the thread, in at most two seconds. May be called twice."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
