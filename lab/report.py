"""The page of an experiment, and ``results.md`` from all pages' figures."""

from __future__ import annotations

from pathlib import Path

from blockswarm.files import write_atomically
from blockswarm.lab.errors import LabError
from blockswarm.lab.experiment import Experiment
from blockswarm.lab.experiments import EXPERIMENTS
from blockswarm.lab.figures import draw
from blockswarm.lab.results import Figures, table


def write(folder: Path, figures: Figures) -> list[Path]:
    """Write ``<name>.md`` and ``<name>.png`` beside the figures; the paths of all four files."""
    experiment = EXPERIMENTS[figures.experiment]
    stem = folder / figures.experiment
    draw(experiment, figures, stem.with_suffix(".png"))
    try:
        write_atomically(stem.with_suffix(".md"), page(experiment, figures).encode())
    except OSError as error:
        raise LabError(f"{stem}.md: cannot be written: {error.strerror or error}") from error
    return [stem.with_suffix(suffix) for suffix in (".json", ".csv", ".md", ".png")]


def page(experiment: Experiment, figures: Figures) -> str:
    """Title, question, how it was made, figure and tables, as Markdown."""
    parts = [f"## {experiment.title}", "", experiment.question, "", _made(figures), ""]
    parts += [f"![{experiment.title}]({figures.experiment}.png)", ""]
    for part in reversed(figures.settings["parts"]):
        parts += [f"**{figures.settings['data']}, {part}**", "", table(figures, part), ""]
    return "\n".join(parts)


def _made(figures: Figures) -> str:
    settings, made_on = figures.settings, figures.machine
    model = settings["model"]
    measured = f"the first {settings['eval_bytes']:,} bytes" if settings["eval_bytes"] else "every byte"
    return (
        f"Made by `blockswarm experiment {figures.experiment} --size {settings['size']} --steps {settings['steps']} "
        f"--seeds {','.join(map(str, settings['seeds']))} --data {settings['data']}`: d {model['dim']}, "
        f"B {model['blocks']}, L {model['layers']}, T {model['context']}, batch {settings['recipe']['batch']}; "
        f"{measured} of the held-out text, windows of {model['context']} bytes that jump by half; "
        f"text sha256 {settings['data_sha256'][:16]}. Machine: {made_on['processor']}, {made_on['cores']} cores, "
        f"{made_on['threads_per_job']} thread a job, torch {made_on['torch']}. "
        "± is one standard deviation over seeds."
    )
