"""The pairs of block state and embedding that are ready to answer, as many as memory is planned for."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from blockswarm.peer.states import State
from blockswarm.swarm.manifest import Manifest
from blockswarm.swarm.memory import KEPT_READERS

if TYPE_CHECKING:
    from blockswarm.model.readout import BlockReader


class Readers:
    """Those asked for last. Used on the serving worker only, so nothing here needs a lock.

    Parameters
    ----------
    manifest : Manifest
        The run.
    device : str
        Torch device of the readers.
    """

    def __init__(self, manifest: Manifest, device: str) -> None:
        self._manifest = manifest
        self._device = device
        self._kept: OrderedDict[tuple[int, bytes, bytes], BlockReader] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, block_state: State, embedding: State) -> BlockReader:
        """The reader of a pair of states, made when it is new."""
        from blockswarm.model.readout import BlockReader

        key = (block_state.subject, block_state.digest, embedding.digest)
        reader = self._kept.get(key)
        if reader is None:
            model, recipe, values = self._manifest.model, self._manifest.recipe, embedding.values
            reader = BlockReader(model, recipe, block_state.subject, block_state.values, values, device=self._device)
            self._kept[key] = reader
            while len(self._kept) > KEPT_READERS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return reader
