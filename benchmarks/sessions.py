"""What a session saves at a holder: one block computes the rows of a verification with and without what it has kept.

    python benchmarks/sessions.py --json

Times are milliseconds on one core of the median of ``--repeats``, for all sessions together; ``window`` computes every
session's window again, one after the other, as holders do for clients without sessions; ``session`` continues what is
kept, all in one go; ``begin`` is the first request of each. Sent and received are bytes a session, without the
transport's own. Weights are random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from blockswarm.model.config import RECIPES, SIZES
from blockswarm.model.layout import EMBEDDING, block_layout, embedding_layout
from blockswarm.model.readout import BlockReader
from blockswarm.peer.sessions import Asked, HolderSessions
from blockswarm.swarm.canonical import canonical_bytes
from blockswarm.swarm.messages import LogprobsRequest
from blockswarm.swarm.session_messages import SessionRequest, text_check

STATES = b"s" * 32, b"e" * 32


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """Median time of one call, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def measure(size: str, sessions: int, draft: int, repeats: int) -> dict[str, object]:
    """One row: ``sessions`` texts that fill three quarters of a window and go on by a draft of ``draft`` bytes."""
    config = SIZES[size]
    theta, table = block_layout(config).genesis(0, 0), embedding_layout(config).genesis(0, EMBEDDING)
    # From the genesis on every row would be the same; so much noise has about the spread of a trained block's rows.
    theta = theta + 0.05 * np.random.default_rng(1).standard_normal(theta.size, dtype=np.float32)
    reader = BlockReader(config, RECIPES["default"], 0, theta, table)
    length, new = config.context * 3 // 4, draft + 1
    texts = np.random.default_rng(0).integers(0, 256, (sessions, length + new), dtype=np.uint8)
    desk = HolderSessions(config, lambda: 0.0)

    def asked(number: int, at: int, end: int) -> Asked:
        text = texts[number].tobytes()
        name, check = number.to_bytes(16, "big"), text_check(text[:at])
        request = SessionRequest(name, 0, *STATES, at=at, new=text[at:end], first=max(at, end - new), check=check)
        return Asked("client", request, request.windows(config.context))

    begin = [asked(number, 0, length) for number in range(sessions)]
    go_on = [asked(number, length, length + new) for number in range(sessions)]
    desk.answer(reader, begin)
    found = np.stack([np.asarray(rows) for rows in desk.answer(reader, go_on)])
    whole = np.stack([reader.log_probs(text[None])[0, length:] for text in texts])
    window = texts[0].tobytes()
    request = LogprobsRequest(0, *STATES, (window,), (length,))
    return {
        "size": size,
        "sessions": sessions,
        "rows": new,
        "window_ms": round(milliseconds(lambda: [reader.log_probs(text[None]) for text in texts], repeats), 2),
        "session_ms": round(milliseconds(lambda: desk.answer(reader, go_on), repeats), 2),
        "begin_ms": round(milliseconds(lambda: desk.answer(reader, begin), repeats), 2),
        "window_sent": len(canonical_bytes(request.to_body())),
        "session_sent": len(canonical_bytes(go_on[0].request.to_body())),
        "received": 1024 * new,
        "largest_difference": float(np.abs(found - whole).max()),
    }


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "small"], choices=SIZES, help="models")
    parser.add_argument("--sessions", nargs="+", type=int, default=[1, 4, 16], help="sessions asking at once")
    parser.add_argument("--drafts", nargs="+", type=int, default=[0, 8], help="bytes guessed in a request")
    parser.add_argument("--repeats", type=int, default=15, help="timings, of which the median counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("size     sessions  rows     window    session      begin  saved         sent")
    for size in args.sizes:
        for sessions in args.sessions:
            for draft in args.drafts:
                row = measure(size, sessions, draft, args.repeats)
                rows.append(row)
                saved = row["window_ms"] / row["session_ms"]
                print(
                    f"{size:8} {sessions:8} {row['rows']:5} {row['window_ms']:7} ms {row['session_ms']:7} ms "
                    f"{row['begin_ms']:7} ms {saved:5.1f}x {row['session_sent']:4} / {row['window_sent']:3} B"
                )
    if args.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
