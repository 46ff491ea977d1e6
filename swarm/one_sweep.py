"""All bytes of a text in one traversal of the blocks: how fast that is, not how well it reads.

The published serving figures take a whole unknown sequence through the blocks once. Every byte is then predicted as if
the bytes before it had been read, but they are unknown: zeros stand for them here. What comes out is letter soup, with
any training (docs/serving.md); so z may as well travel at 8 bits a value. This exists to measure a swarm's lines and
blocks against those figures.
"""

from __future__ import annotations

from blockswarm.naming import option
from blockswarm.swarm.chain import sweep_at_once
from blockswarm.swarm.chain_messages import Draw
from blockswarm.swarm.continuation import Verified
from blockswarm.swarm.errors import ArgumentError
from blockswarm.swarm.generation import Generation
from blockswarm.swarm.options import Writing
from blockswarm.swarm.readouts import read
from blockswarm.swarm.session import Session


class OneSweep(Generation):
    """A text whose bytes are all drawn at once.

    Parameters
    ----------
    session, prompt, asked
        As for `Generation`.

    Raises
    ------
    ArgumentError
        If more bytes are asked for than one window holds.
    """

    def __init__(self, session: Session, prompt: bytes, asked: Writing) -> None:
        context = session.core.manifest.model.context
        if asked.max_bytes > context:
            raise ArgumentError(
                f"{option('max_bytes')} {asked.max_bytes}: {option('readout', 'one-sweep')} takes one window, at most "
                f"{context} bytes with this model"
            )
        super().__init__(session, prompt, asked)

    async def _step(self) -> None:
        asked, text, session = self._asked, self._text, self._session
        chunk, seed = text.unknown(), asked.drawn_seed
        # Who wants the rows gets them, and draws here: the bytes are the same.
        draw = Draw(asked.temperature, asked.top_k, asked.top_p)
        drawn = None if asked.rows else await sweep_at_once(session, chunk, seed, draw, narrow=True)
        before = text.written
        if isinstance(drawn, bytes):
            for byte in drawn:
                text.take(byte)
                if text.ended:
                    break
        else:
            for row in await read(session, chunk, readout="sweep", seed=seed, narrow=True):
                text.add(row)
                if text.ended:
                    break
        self._count(0, Verified(text.written - before, 0))
