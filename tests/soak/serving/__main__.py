"""``python -m tests.soak.serving``: is a text the same to the byte, whoever drafts it, whatever becomes of its holders?

Real holders over real connections on loopback, a small trained model. 200 prompts at three temperatures with every
drafter, drafts of 1 to 32 bytes, with caches and without, while holders are killed and exchanged and rounds are
committed; each text is compared with plain decoding (byte by byte, every window by itself) of the states it was pinned
to. With ``--journal`` an interrupted run goes on where it stopped. Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import click
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.machine import machine
from blockswarm.files import write_atomically
from blockswarm.model.corpus import open_corpus
from tests.soak.serving.judge import Outcome, failures, figures, markdown
from tests.soak.serving.plan import plan, prompts_from, spread
from tests.soak.serving.world import MODEL
from tests.soak.serving.writing import write_all


@click.command()
@click.option("--prompts", default=200, show_default=True, type=click.IntRange(1))
@click.option("--bytes", "size", default=48, show_default=True, type=click.IntRange(1), help="Of each text.")
@click.option("--texts", type=click.IntRange(1), help="Only so many of them, spread over the matrix.")
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="File for the figures: JSON, and .md.")
@click.option("--journal", type=click.Path(dir_okay=False, path_type=Path), help="File of what is done already.")
def main(prompts: int, size: int, texts: int | None, seed: int, report: Path | None, journal: Path | None) -> None:
    """Write texts under every disturbance, and compare them with plain decoding."""
    began = time.time()
    settings = {"prompts": prompts, "bytes": size, "seed": seed}
    cells = plan(prompts, seed)
    cells = cells if texts is None else spread(cells, texts, seed)
    done = read_journal(journal, settings) if journal is not None else {}
    earlier = sum(outcome.seconds for outcome in done.values())
    stopped_short = ""
    written = prompts_from(bytes(open_corpus("docs", context=MODEL.context).train), prompts, seed)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="soak-") as folder,
            Progress(*columns, console=Console(stderr=True)) as progress,
        ):
            task = progress.add_task("texts", total=len(cells), completed=len(done.keys() & {c.number for c in cells}))
            for outcome in write_all(Path(folder), cells, written, size, done):
                done[outcome.cell] = outcome
                if journal is not None:
                    with journal.open("a") as file:
                        file.write(json.dumps(asdict(outcome)) + "\n")
                progress.advance(task)
    except KeyboardInterrupt:
        stopped_short = "interrupted"
    found = figures(cells, done) | {
        "settings": settings,
        "machine": machine(),
        "seconds": round(time.time() - began + earlier, 1),
        "stopped_short": stopped_short,
        "load": round(psutil.getloadavg()[0], 2),
    }
    if report is not None:
        write_atomically(report, (json.dumps(found, indent=1) + "\n").encode())
        write_atomically(report.with_suffix(".md"), markdown(found).encode())
    click.echo(json.dumps({key: value for key, value in found.items() if key != "by"}))
    problems = failures(found) + ([f"it ended early: {stopped_short}"] if stopped_short else [])
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    sys.exit(1 if problems else 0)


def read_journal(path: Path, settings: dict[str, int]) -> dict[int, Outcome]:
    """What an earlier run with the same settings has done; a new journal is begun where there is none."""
    if not path.exists():
        path.write_text(json.dumps(settings) + "\n")
        return {}
    first, *lines = path.read_text().splitlines()
    if json.loads(first) != settings:
        raise click.UsageError(f"{path} is of a run with other settings: {first}")
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return {outcome.cell: outcome for outcome in outcomes}


if __name__ == "__main__":
    main()
