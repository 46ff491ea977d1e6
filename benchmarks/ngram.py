"""The n-gram model, measured: how long counting takes and how much memory, how long the file is, how quick it answers.

    python benchmarks/ngram.py --train train.txt --test valid.txt --test test.txt --json

Counts the bytes of ``--train`` (without it: the training part of Python's own documentation) in a process of its own,
whose peak memory is reported. Every ``--test`` file (without: the held-out part of the documentation) is then predicted
whole, each byte from the true bytes before it: cross-entropy, its 95 % interval, and how often the likeliest byte was
the right one. Times are processor seconds; memory is resident MB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from blockswarm.files import write_atomically
from blockswarm.model.corpus import open_corpus
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.model.scoring import score_of

STEPS = 5000
"""Single rows asked for, one after the other."""

ROWS_AT_ONCE = 1 << 14
"""Rows of a test text that are held together."""

Bytes = NDArray[np.uint8]


def training_text(path: str | None) -> Bytes:
    """What is counted."""
    return np.fromfile(path, np.uint8) if path else open_corpus("docs", context=128).train


def test_texts(paths: list[str]) -> dict[str, Bytes]:
    """What is predicted, by name."""
    if not paths:
        return {"docs (held out)": open_corpus("docs", context=128).heldout}
    return {Path(path).name: np.fromfile(path, np.uint8) for path in paths}


def build(args: argparse.Namespace) -> dict[str, Any]:
    """Count, write the file, and say what that took; the process does nothing else."""
    text = training_text(args.train)
    begin, wall = time.process_time(), time.perf_counter()
    data = build_ngram_file(text, order=args.order, min_count=args.min_count, max_bytes=args.max_bytes)
    seconds, wall_seconds = time.process_time() - begin, time.perf_counter() - wall
    write_atomically(args.out, data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "counted_bytes": len(text),
        "build_s": round(seconds, 2),
        "build_wall_s": round(wall_seconds, 2),
        "build_peak_mb": round(peak, 1),
    }


def build_apart(args: argparse.Namespace) -> dict[str, Any]:
    """`build` in a process of its own."""
    command = [sys.executable, __file__, "--build-only", "--out", str(args.out)]
    command += ["--order", str(args.order), "--min-count", str(args.min_count)]
    command += ["--train", args.train] if args.train else []
    command += ["--max-bytes", str(args.max_bytes)] if args.max_bytes else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def resident_mb() -> float:
    """Resident memory of this process."""
    return float(psutil.Process().memory_info().rss / 2**20)


def likeliest_is_right(model: NgramModel, text: Bytes) -> float:
    """Share of the bytes of ``text`` but the first that the model had put first, true context before each."""
    right = 0
    for start in range(0, len(text) - 1, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, len(text) - 1)
        before = max(0, start - model.header.order)
        rows = model.log_probs(text[np.newaxis, before:stop])[0, start - before :]
        right += int((rows.argmax(axis=1) == text[start + 1 : stop + 1]).sum())
    return right / (len(text) - 1)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Build, open, ask."""
    result: dict[str, Any] = {"order": args.order, **build_apart(args)}
    before, begin = resident_mb(), time.process_time()
    model = NgramModel.open(args.out)
    seconds, added = time.process_time() - begin, resident_mb() - before
    result |= {
        "min_count": model.header.min_count,
        "file_mb": round(model.size / 2**20, 2),
        "digest": model.digest.hex(),
        "open_s": round(seconds, 3),
        "open_added_mb": round(added, 1),
        "tests": {},
    }
    for name, text in test_texts(args.test).items():
        begin = time.process_time()
        score = score_of(model.byte_log_probs(text))
        seconds = time.process_time() - begin
        begin = time.process_time()
        top = likeliest_is_right(model, text)
        rows_seconds = time.process_time() - begin
        result["tests"][name] = {
            "bytes": score.bytes,
            "nats_per_byte": round(score.nats_per_byte, 5),
            "bits_per_byte": round(score.bits_per_byte, 5),
            "ci95": score.ci95 and round(score.ci95, 5),
            "top1": round(top, 4),
            "score_s": round(seconds, 2),
            "rows_us": round(rows_seconds / score.bytes * 1e6, 2),
        }
        sample = text.tobytes()
        places = np.linspace(0, len(sample), STEPS).astype(int).tolist()
        begin = time.process_time()
        for place in places:
            model.next_log_probs(sample[max(0, place - 64) : place])
        result["tests"][name]["next_us"] = round((time.process_time() - begin) / STEPS * 1e6, 1)
    result["asked_added_mb"] = round(resident_mb() - before, 1)
    return result


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", help="file whose bytes are counted")
    parser.add_argument("--test", action="append", default=[], help="file to predict; may be given several times")
    parser.add_argument("--order", type=int, default=8, help="longest context, bytes (default 8)")
    parser.add_argument("--min-count", type=int, default=1, help="leave out contexts seen fewer times (default 1)")
    parser.add_argument("--max-bytes", type=int, help="leave out as many more as the file needs to be this short")
    parser.add_argument("--out", type=Path, help="where the file goes (default: nowhere)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--build-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.build_only:
        print(json.dumps(build(args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        args.out = args.out or Path(folder) / "counts.ngram"
        result = measure(args)
    for name, value in result.items():
        if name != "tests":
            print(f"{name:20} {value}")
    for name, test in result["tests"].items():
        print(name)
        for what, value in test.items():
            print(f"    {what:16} {value}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
