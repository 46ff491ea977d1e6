"""``python -m tests.fuzz``: fuzz the decoders of foreign bytes, led by coverage; `make fuzz` does it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path

from tests.fuzz import guided


def main(words: list[str] | None = None) -> int:
    """Exit code 0: nothing was found; 1: something was; 2: it cannot run here, or not like this."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--runs", type=int, help="for each target, instead of seconds")
    parser.add_argument("--seed", type=int, help="of the mutations (default: another one every time)")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="corpus, findings, logs (default: .fuzz)")
    parser.add_argument("--list", action="store_true", help="name the targets and end")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    chosen = parser.parse_args(words)
    if reason := guided.why_not():
        print(reason, file=sys.stderr)
        return 2
    logging.disable(logging.CRITICAL)  # decoders may log what they refuse
    targets, broken = guided.load()
    if chosen.list:
        print("\n".join(targets))
        return 0
    known = {**targets, broken.name: broken}
    if unknown := set(chosen.target or ()) - known.keys():
        parser.error(f"no target named {', '.join(sorted(unknown))}; see --list")
    seed = int.from_bytes(os.urandom(3), "big") + 1 if chosen.seed is None else chosen.seed
    chosen.folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, inputs and findings in {chosen.folder}", flush=True)
    outcomes = []
    for name in chosen.target or targets:
        seconds = None if chosen.runs else chosen.seconds
        outcome = guided.fuzz(known[name], chosen.folder.resolve(), seed=seed, runs=chosen.runs, seconds=seconds)
        print(outcome, flush=True)
        outcomes.append(outcome)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], default=str, indent=1) + "\n")
    found = sum(len(outcome.findings) for outcome in outcomes)
    if found:
        print(f"{found} found. What broke stands at the end of its log; docs/testing.md says what to do.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
