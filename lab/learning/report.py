"""The pictures of simulated trainings and their page. Readable on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockswarm.lab.figures import WIDTH_INCHES
from blockswarm.lab.learning.results import STEM, Figures, table
from blockswarm.lab.writing import write_file
from blockswarm.pictures import INK, MARKERS, pyplot, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIME, PARTICIPATION = f"{STEM}-time.png", f"{STEM}-participation.png"
PANEL_INCHES = 2.1
FONT_SIZE = 8.0


def write_report(folder: Path, figures: Figures) -> list[Path]:
    """Write both pictures and ``learning.md``; the paths of all files of the output folder.

    Raises
    ------
    PictureError
        If matplotlib is not installed, or a picture cannot be written.
    LabError
        If the page cannot be written.
    """
    rows = figures.summary()
    save_picture(_over_time(rows), folder / TIME)
    save_picture(_over_participation(rows), folder / PARTICIPATION)
    write_file(folder / f"{STEM}.md", page(figures))
    return [folder / name for name in (f"{STEM}.json", f"{STEM}.csv", f"{STEM}.md", TIME, PARTICIPATION)]


def page(figures: Figures) -> str:
    """How it was made, the pictures and the table, as Markdown."""
    settings, recipe = figures.settings, figures.settings["recipe"]
    seeds = sorted({row.seed for row in figures.rows})
    made = (
        f"Size {settings['size']}, {recipe['blocks']} blocks, {recipe['replicas']} worker(s) each, {recipe['rounds']} "
        f"deadlines, recipe {recipe['name']}, seeds {', '.join(map(str, seeds))}, {settings['data']} "
        f"({settings['part']}, {settings['eval_bytes'] or 'all'} bytes). Training is real; time, lines and losses of "
        "updates are simulated."
    )
    return "\n".join(
        [
            "## Learning under deadlines (simulated)", "", made, "",
            f"![Cross-entropy against simulated time]({TIME})", "",
            f"![Cross-entropy against participation]({PARTICIPATION})", "",
            table(figures), "",
        ]
    )  # fmt: skip


def _styles(rows: list[dict[str, Any]], what: str, of: tuple[str, ...] | str) -> dict[str, str]:
    names = dict.fromkeys(row[what] for row in rows)
    return {name: of[place % len(of)] for place, name in enumerate(names)}


def _over_time(rows: list[dict[str, Any]]) -> Figure:
    """A panel for each regime, a line for each policy."""
    regimes = list(dict.fromkeys(row["regime"] for row in rows))
    colours, markers = _styles(rows, "policy", INK), _styles(rows, "policy", MARKERS)
    columns = min(2, max(1, len(regimes)))
    lines = max(1, -(-len(regimes) // columns))
    figure: Figure
    figure, grid = pyplot(FONT_SIZE).subplots(
        lines, columns, figsize=(WIDTH_INCHES, 0.7 + PANEL_INCHES * lines), squeeze=False, sharey=True
    )
    handles: dict[str, Any] = {}
    for axes in grid.flat[len(regimes) :]:
        axes.set_axis_off()
    for axes, regime in zip(grid.flat, regimes, strict=False):
        for row in rows:
            if row["regime"] == regime and row["curve"]:
                policy = row["policy"]
                (handles[policy],) = axes.plot(
                    *zip(*row["curve"], strict=True),
                    color=colours[policy],
                    marker=markers[policy],
                    markersize=3,
                    linewidth=1.1,
                )
        axes.set_title(regime, fontsize=8, loc="left")
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    figure.supxlabel("simulated seconds", fontsize=8)
    figure.supylabel("held-out nats per byte", fontsize=8)
    ordered = [policy for policy in colours if policy in handles]
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.45 / figure.get_figheight()))
    figure.legend([handles[p] for p in ordered], ordered, loc="upper center", ncols=4, fontsize=7, frameon=False)
    return figure


def _over_participation(rows: list[dict[str, Any]]) -> Figure:
    """A point for each row: colour tells the policy, shape the regime."""
    colours, markers = _styles(rows, "policy", INK), _styles(rows, "regime", MARKERS)
    figure: Figure
    figure, axes = pyplot(FONT_SIZE).subplots(figsize=(WIDTH_INCHES, 4.4))
    for row in rows:
        axes.plot(
            row["participation"],
            row["final_ce"],
            markers[row["regime"]],
            color=colours[row["policy"]],
            markersize=5,
            alpha=0.85,
        )
    for policy, colour in colours.items():
        axes.plot([], [], "s", color=colour, label=policy, markersize=4)
    for regime, marker in markers.items():
        axes.plot([], [], marker, color="#555555", label=regime, markersize=4)
    axes.set_xlabel("participation: accepted updates ÷ updates trained")
    axes.set_ylabel("final held-out nats per byte")
    axes.grid(color="#eeeeee", linewidth=0.5)
    axes.legend(fontsize=6.5, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    return figure
