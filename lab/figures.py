"""An experiment's picture: dots, or lines where its rows stand on an axis. Readable on a phone and in print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blockswarm.lab.experiment import Experiment
from blockswarm.lab.results import Figures
from blockswarm.pictures import INK, MARKERS, pyplot, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES = 6.0
LEVELS = {"end_to_end_full": "end-to-end, full depth", "control_ensemble": "averaged plain models", "ngram": "counts"}
"""Baselines drawn as level lines."""


def draw(experiment: Experiment, figures: Figures, path: Path) -> None:
    """Write the picture as PNG.

    Parameters
    ----------
    experiment : Experiment
        Its title and axis.
    figures : Figures
        What is drawn: means over seeds, with one standard deviation to each side.
    path : Path
        The PNG file.

    Raises
    ------
    PictureError
        If matplotlib is not installed, or the file cannot be written.
    """
    lines = bool(figures.curves or experiment.axis)
    rows = len(figures.summary())
    size = (WIDTH_INCHES, 4.0 if lines else 0.24 * rows + 1.0)
    figure, axes = pyplot(font_size=9).subplots(figsize=size, dpi=160)
    if figures.curves:
        _curves(axes, figures)
    elif experiment.axis:
        _lines(axes, figures, experiment.axis)
    else:
        _dots(axes, figures)
    if lines:
        _levels(axes, figures)
        axes.legend(fontsize=7, frameon=False)
    axes.set_title(f"{experiment.title}\n{_frame(figures)}", fontsize=8, loc="left")
    figure.tight_layout()
    save_picture(figure, path)


def _frame(figures: Figures) -> str:
    settings = figures.settings
    return (
        f"{settings['size']}, {settings['steps']} steps, seeds {', '.join(map(str, settings['seeds']))}, "
        f"{settings['data']} {figures.part}"
    )


def _dots(axes: Axes, figures: Figures) -> None:
    """A dot for each row: unlike bars, dots are read by their place, so the axis need not begin at zero."""
    summary = figures.summary()
    groups = {row.label: row.group for row in figures.rows}
    colours = {group: INK[i % len(INK)] for i, group in enumerate(dict.fromkeys(groups.values()))}
    labels = list(summary)
    places = range(len(labels), 0, -1)
    for place, label in zip(places, labels, strict=True):
        mean, spread, colour = summary[label]["mean"], summary[label]["std"], colours[groups[label]]
        axes.errorbar(mean, place, xerr=spread, fmt="o", color=colour, markersize=3.5, elinewidth=0.9)
        axes.annotate(
            f"{mean:.3f}", (mean + spread, place), (4, 0), textcoords="offset points", va="center", fontsize=6
        )
    axes.set_yticks(places, labels, fontsize=6.5)
    axes.set_ylim(0, len(labels) + 1)
    axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes.margins(x=0.08)
    axes.set_xlabel("nats per byte")


def _lines(axes: Axes, figures: Figures, axis: str) -> None:
    summary = figures.summary()
    series: dict[str, dict[float, str]] = {}
    for row in figures.rows:
        if row.x is not None:
            series.setdefault(row.group, {})[row.x] = row.label
    for number, (group, points) in enumerate(series.items()):
        xs = sorted(points)
        axes.errorbar(
            xs,
            [summary[points[x]]["mean"] for x in xs],
            yerr=[summary[points[x]]["std"] for x in xs],
            color=INK[number % len(INK)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            linewidth=1.2,
            label=group,
        )
    values = [x for points in series.values() for x in points]
    if values and max(values) / max(1e-9, min(values)) >= 4:
        axes.set_xscale("log", base=2)
    axes.set_xlabel(axis)
    axes.set_ylabel("nats per byte")


def _curves(axes: Axes, figures: Figures) -> None:
    for number, (label, curve) in enumerate(figures.curves.items()):
        axes.plot(*zip(*curve, strict=True), color=INK[number % len(INK)], linewidth=1.2, label=label)
    axes.set_xlabel("steps of each worker")
    axes.set_ylabel("nats per byte, validation, parallel readout")


def _levels(axes: Axes, figures: Figures) -> None:
    summary = figures.summary()
    for number, (label, name) in enumerate(LEVELS.items()):
        if label in summary:
            style = ("-.", "--", ":")[number]
            axes.axhline(summary[label]["mean"], color="#555555", linestyle=style, linewidth=0.9, label=name)
