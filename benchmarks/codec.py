"""Codecs of updates: speed, bytes and what they lose, on the update of a block that was really trained.

    python benchmarks/codec.py --values 10000000 --json

Speed is that of one core, in MB of float32 a second, on ``--values`` values drawn from the update. ``error`` is the
length of what one encoding loses over the length of the update; ``error_fed_back`` the same over eight updates in a row
when each also carries what the one before lost. The update is that of ``--steps`` optimizer steps from the genesis;
``--steps 0`` takes random normal values instead and needs no training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from blockswarm.swarm.codec import NAMES, ErrorFeedback, decode, encode, encoded_size

Float32 = npt.NDArray[np.float32]

UPDATES = 8
"""Updates in a row for ``error_fed_back``."""


def trained_updates(steps: int, data: str) -> list[Float32]:
    """Updates of a block of size ``tiny``, ``steps`` optimizer steps each, from the genesis on."""
    import torch

    from blockswarm.model.config import RECIPES, SIZES
    from blockswarm.model.corpus import batches, open_corpus
    from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
    from blockswarm.model.learner import BlockLearner

    torch.set_num_threads(1)
    config, recipe = SIZES["tiny"], RECIPES["default"]
    corpus = open_corpus(data, context=config.context)
    theta, table = block_layout(config).genesis(0, 0), embedding_layout(config).genesis(0, EMBEDDING)
    feed = batches(corpus, 0, recipe.batch, config.context)
    learner = BlockLearner(config, recipe, 0, theta, table, batches=feed, seed=0, device="cpu")
    updates, before = [], theta
    for _ in range(UPDATES):
        for _ in range(steps):
            learner.step()
        after, _ = learner.read()
        updates.append(after - before)
        before = after
    return updates


def random_updates(count: int) -> list[Float32]:
    """Normal values of the size that updates have."""
    rng = np.random.default_rng(0)
    return [(1e-3 * rng.standard_normal(count)).astype(np.float32) for _ in range(UPDATES)]


DECAYS = {"experimental-dct": 0.999}
"""DeMo's momentum; every other residual is kept whole."""


def length(values: npt.NDArray[np.floating]) -> float:
    """Euclidean norm in float64."""
    return float(np.linalg.norm(values.astype(np.float64)))


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """Median processor seconds of ``work``."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def measure(name: str, values: Float32, updates: list[Float32], repeats: int) -> dict[str, object]:
    """One row of the table."""
    count = len(values)
    data = encode(values, name)
    feedback = ErrorFeedback(len(updates[0]), name, decay=DECAYS.get(name, 1.0))
    sent = sum(decode(feedback.encode(update), len(update), name) for update in updates)
    given = sum(updates[1:], updates[0])
    lost = decode(encode(updates[0], name), len(updates[0]), name) - updates[0]
    megabytes = 4 * count / 1e6
    encoding = seconds_of(lambda: encode(values, name), repeats)
    decoding = seconds_of(lambda: decode(data, count, name), repeats)
    return {
        "codec": name,
        "bits": round(8 * encoded_size(count, name) / count, 3),
        "bytes_ratio": round(4 * count / encoded_size(count, name), 2),
        "encode_mb_s": round(megabytes / encoding),
        "decode_mb_s": round(megabytes / decoding),
        "encode_ms": round(1e3 * encoding, 1),
        "decode_ms": round(1e3 * decoding, 1),
        "error": round(length(lost) / length(updates[0]), 6),
        "error_fed_back": round(length(sent - given) / length(given), 6),
    }


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=10_000_000, help="length of the vector timed (default 10M)")
    parser.add_argument("--repeats", type=int, default=5, help="timings of each codec, of which the median counts")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps an update (default 10); 0: random")
    parser.add_argument("--data", default="docs", help="docs, a file or folder, or hf:<dataset>")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()

    updates = trained_updates(args.steps, args.data) if args.steps else random_updates(1_000_000)
    values = np.resize(updates[-1], args.values)
    rows = []
    print(f"{'codec':20} {'bits':>7} {'ratio':>7} {'encode':>12} {'decode':>12} {'error':>9} {'fed back':>9}")
    for name in NAMES:
        row = measure(name, values, updates, args.repeats)
        rows.append(row)
        print(
            f"{name:20} {row['bits']:7} {row['bytes_ratio']:7} {row['encode_mb_s']:7} MB/s {row['decode_mb_s']:7} MB/s "
            f"{row['error']:9} {row['error_fed_back']:9}"
        )
    if args.json:
        print(json.dumps({"values": args.values, "steps": args.steps, "data": args.data, "rows": rows}))


if __name__ == "__main__":
    main()
