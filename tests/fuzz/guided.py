"""Fuzzing led by coverage: an input that reaches new code is kept and changed further (libFuzzer, through Atheris).

Each target runs in a process forked from one that has imported and instrumented everything, because libFuzzer ends its
process. With the same seed and number of runs the inputs are the same.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fuzz.tokens import TOKENS

if TYPE_CHECKING:
    from tests.fuzz.target import Target

SLOWEST = 10
"""Seconds after which one input counts as a finding: the decoder hangs."""

MOST_MEMORY_MB = 1500
"""Resident memory of the whole process at which the input of the moment counts as a finding."""

LONGEST = 128 << 10
"""Bytes of an input at most. Longer ones are slow to change; ``test_decoders`` tries those."""

_INSTRUMENTED = ["blockswarm", "tomllib", "tests.fuzz.every"]
_PROGRESS = re.compile(r"#(\d+)\s.*cov: (\d+) ft: (\d+) corp: (\d+)/")


@dataclass(frozen=True)
class Outcome:
    """How the fuzzing of one target went."""

    target: str
    runs: int
    seconds: float
    coverage: int
    """Branches and calls reached in the instrumented code."""
    features: int
    """The same, told apart by how often: what libFuzzer keeps inputs for."""
    inputs: int
    """Inputs kept, none of which the others can replace."""
    findings: tuple[Path, ...]
    """Inputs that broke a promise, hung or took too much memory."""
    log: Path

    def __str__(self) -> str:
        rate = self.runs / max(self.seconds, 1e-3)
        text = (
            f"{self.target:<18} {self.runs:>9,} runs in {self.seconds:>4.0f} s ({rate:>6,.0f}/s), coverage "
            f"{self.coverage:>4}, {self.features:>5} features, {self.inputs:>4} inputs"
        )
        return "\n".join([text, *(f"  FOUND {path}" for path in self.findings)])


def why_not() -> str | None:
    """Why coverage cannot lead here, or ``None``."""
    try:
        import atheris  # noqa: F401
    except ImportError as error:
        return (
            f"Atheris is not installed ({error}): pip install 'blockswarm[fuzz]' (CPython 3.11 to 3.13 on Linux x86_64)"
        )
    return None


def load() -> tuple[Mapping[str, Target], Target]:
    """All targets, the code under them instrumented, and one that breaks. To be called before that code is imported."""
    import atheris

    if early := sorted(name for name in sys.modules if name.startswith("blockswarm.")):
        raise RuntimeError(f"{early[0]} was imported before it could be instrumented")
    # It tells every module that it instruments.
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=_INSTRUMENTED):
        from tests.fuzz.every import BROKEN, TARGETS
        from tests.fuzz.files import scratch
    scratch()
    return TARGETS, BROKEN


def fuzz(target: Target, folder: Path, *, seed: int, runs: int | None = None, seconds: int | None = None) -> Outcome:
    """Fuzz one target until ``runs`` or ``seconds`` are over, or something is found.

    Parameters
    ----------
    target : Target
        From `load`.
    folder : Path
        ``corpus/<target>`` in it is begun with and added to, findings go to ``findings/<target>``.
    seed : int
        Of the mutations.
    runs, seconds : int, optional
        One of them.
    """
    corpus, findings = (folder / kind / target.name for kind in ("corpus", "findings"))
    seeds, log = folder / "seeds" / target.name, folder / f"{target.name}.log"
    for place in (corpus, findings, seeds):
        place.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds()):
        (seeds / str(number)).write_bytes(data)
    words = folder / "tokens.dict"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in token) + '"\n' for token in TOKENS))
    before = set(findings.iterdir())
    arguments = [
        "fuzz",
        f"-seed={seed}",
        f"-runs={-1 if runs is None else runs}",
        f"-max_total_time={seconds or 0}",
        f"-timeout={SLOWEST}",
        f"-rss_limit_mb={MOST_MEMORY_MB}",
        f"-max_len={min(target.longest, LONGEST)}",
        f"-dict={words}",
        f"-artifact_prefix={findings}/",
        str(corpus),
        str(seeds),
    ]
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _run(target, arguments, log)
    try:
        status = os.waitpid(child, 0)[1]
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    spent = time.monotonic() - began
    text = log.read_text(errors="replace")
    found = tuple(sorted(set(findings.iterdir()) - before))
    if status and not found:
        raise RuntimeError(f"{target.name}: the fuzzer ended with status {status} and no finding; see {log}")
    progress = [tuple(map(int, match.groups())) for match in _PROGRESS.finditer(text)] or [(0, 0, 0, 0)]
    done, coverage, features, inputs = progress[-1]
    return Outcome(target.name, done, spent, coverage, features, inputs, found, log)


def _run(target: Target, arguments: list[str], log: Path) -> None:
    """In the child: never returns."""
    import atheris

    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)

    def one(data: bytes) -> Any:
        target.run(data)

    atheris.Setup(arguments, one)
    atheris.Fuzz()
    os._exit(0)
