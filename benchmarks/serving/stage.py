"""One stage of the plain pipeline: a block with its cache behind a TCP port.

    python -m benchmarks.serving.stage --manifest swarm.toml --block 1 --listen 10.77.0.2:7001 --next 10.77.0.3:7002

The pipeline is what the swarm is measured against: autoregressive, a byte at a time, a hidden state of d float32 from
stage to stage, keys and values cached at each. It has the blocks of the swarm's model, at their initial weights: what
it writes means nothing, the time it takes does.
"""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.serving import wire
from blockswarm.model.block import Block, Continued
from blockswarm.model.layout import EMBEDDING
from blockswarm.model.learner import join
from blockswarm.model.partition import readout_sigma
from blockswarm.swarm.manifest import Manifest


class Stage:
    """A block that reads on where it stopped.

    Parameters
    ----------
    manifest : Manifest
        The swarm whose block it is.
    block : int
        Which.
    """

    def __init__(self, manifest: Manifest, block: int) -> None:
        model, recipe = manifest.model, manifest.recipe
        device = torch.device("cpu")
        weights = join(model, manifest.verify_genesis(block), manifest.verify_genesis(EMBEDDING), device)
        self.last = block == model.blocks - 1
        self._dim = model.dim
        self._block = Block(model, recipe.sigma_data, weights, number=block)
        self._sigma = torch.full((1,), readout_sigma(recipe, model.blocks, block))
        self._cache = self._block.open()

    @torch.inference_mode()
    def step(self, fresh: bool, text: bytes, hidden: bytes) -> bytes:
        """What goes on: the hidden states of ``text``, or from the last stage the log-probabilities after it."""
        if fresh:
            self._cache = self._block.open()
        x = torch.from_numpy(np.frombuffer(text, np.uint8).copy())[None]
        z = None
        if hidden:
            z = torch.from_numpy(np.frombuffer(hidden, "<f4").copy()).view(1, len(text), self._dim)
        out = self._block.denoise(x, z, self._sigma, Continued([self._cache], [len(text)]))
        if self.last:
            out = torch.log_softmax(self._block.logits(out[:, -1:], self._block.table()), dim=-1)
        return out.numpy().astype("<f4").tobytes()


def main() -> int:
    """Serve until whoever feeds this stage has gone."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--manifest", type=Path, required=True)
    top.add_argument("--block", type=int, required=True)
    top.add_argument("--listen", required=True, help="address:port")
    top.add_argument("--next", help="address:port of the next stage; the last one answers whoever dials it second")
    options = top.parse_args()
    torch.set_num_threads(1)
    stage = Stage(Manifest.from_toml(options.manifest.read_text()), options.block)
    host, port = options.listen.rsplit(":", 1)
    with socket.create_server((host, int(port))) as server:
        onward = None if options.next is None else wire.dial(options.next)  # before anybody else reaches it
        print("ready", flush=True)
        feed = wire.tuned(server.accept()[0])
        feed.settimeout(None)
        onward = onward or wire.tuned(server.accept()[0])
        with feed, onward:
            try:
                while True:
                    fresh, text, hidden = wire.receive(feed)
                    wire.send(onward, fresh=fresh, text=text, values=stage.step(fresh, text, hidden))
            except EOFError:
                return 0


if __name__ == "__main__":
    sys.exit(main())
