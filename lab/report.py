"""The page of an experiment, and ``results.md`` from all pages' figures."""

from __future__ import annotations

from pathlib import Path

from blockswarm.lab.errors import LabError, LabUsageError
from blockswarm.lab.experiment import Experiment
from blockswarm.lab.experiments import EXPERIMENTS
from blockswarm.lab.figures import draw
from blockswarm.lab.results import Figures, further_table, load, table
from blockswarm.lab.wants import CACHE
from blockswarm.lab.writing import write_file


def write(folder: Path, figures: Figures) -> list[Path]:
    """Write ``<name>.md`` and ``<name>.png`` beside the figures; the paths of all four files."""
    experiment = EXPERIMENTS[figures.experiment]
    stem = folder / figures.experiment
    draw(experiment, figures, stem.with_suffix(".png"))
    write_file(stem.with_suffix(".md"), page(experiment, figures, f"{figures.experiment}.png"))
    return [stem.with_suffix(suffix) for suffix in (".json", ".csv", ".md", ".png")]


def page(experiment: Experiment, figures: Figures, link: str) -> str:
    """Title, question, how it was made, figure (at ``link``) and tables, as Markdown."""
    parts = [f"## {experiment.title}", "", experiment.question, "", _made(figures), ""]
    parts += [f"![{experiment.title}]({link})", ""]
    parts += [f"**{figures.settings['data']}, {figures.part}**", "", table(figures), ""]
    if figures.also:
        parts += [further_table(figures.also), ""]
    return "\n".join(parts)


def assemble(folder: Path, target: Path) -> list[str]:
    """Write one page from all figures in ``folder`` and its ``preface.md``; nothing is trained or measured.

    Parameters
    ----------
    folder : Path
        Holds ``<experiment>.json`` files, or subfolders that do.
    target : Path
        The page, in the folder above or in ``folder`` itself: figures are linked relative to it.

    Returns
    -------
    list of str
        The experiments on the page, in their order.

    Raises
    ------
    LabError
        If there are no figures, ``target`` does not stand above them, or a file is damaged or cannot be read or
        written.
    PictureError
        If matplotlib is not installed, or a picture cannot be written.
    """
    found = sorted(folder.rglob("*.json"), key=lambda path: (path.parent != folder, path.parent.name, _order(path)))
    found = [path for path in found if path.stem in EXPERIMENTS and CACHE not in path.parts]
    if not found:
        raise LabUsageError(f"{folder}: holds no figures; run blockswarm experiment NAME --output {folder} first")
    pictures = [path.with_suffix(".png") for path in found]
    try:
        links = [picture.relative_to(target.parent).as_posix() for picture in pictures]
    except ValueError as error:
        raise LabUsageError(f"{target}: must stand above {folder}, which it links to") from error
    parts = [_preface(folder / "preface.md")]
    for path, picture, link in zip(found, pictures, links, strict=True):
        experiment, figures = EXPERIMENTS[path.stem], load(path)
        draw(experiment, figures, picture)
        parts.append(page(experiment, figures, link))
    write_file(target, "\n".join(parts))
    return [path.relative_to(folder).with_suffix("").as_posix() for path in found]


def _preface(path: Path) -> str:
    try:
        return path.read_text().rstrip() + "\n" if path.exists() else "# Results\n"
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _order(path: Path) -> int:
    names = list(EXPERIMENTS)
    return names.index(path.stem) if path.stem in names else len(names)


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
