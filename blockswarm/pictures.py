"""Pictures of figures, where matplotlib is installed: how all of them look, and how they become files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockswarm.errors import BlockswarmError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = ("#1b4965", "#c1440e", "#4f772d", "#7b2d8b", "#b08900", "#2a9d8f", "#6c757d", "#9e2a2b")
"""Line colours that stay apart in grey and for the colour-blind together with the markers."""
MARKERS = "osD^vPX*"


class PictureError(BlockswarmError):
    """A picture cannot be drawn or written."""


def pyplot(font_size: float = 10.0) -> Any:
    """``matplotlib.pyplot`` without a screen, set up for our pictures.

    Call it before hours of work rather than after them.

    Raises
    ------
    PictureError
        If matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise PictureError(f"pictures need matplotlib ({error}): pip install 'blockswarm[experiments]'") from error
    pyplot.rcParams.update({"font.size": font_size, "axes.spines.top": False, "axes.spines.right": False})
    return pyplot


def save_picture(figure: Figure, path: Path, *, dpi: int = 160) -> None:
    """Write a figure as PNG that does not name the version of matplotlib, and close it.

    Raises
    ------
    PictureError
        If the file cannot be written.
    """
    from matplotlib import pyplot

    try:
        figure.savefig(path, dpi=dpi, format="png", metadata={"Software": None})
    except OSError as error:
        raise PictureError(f"{path}: cannot write the picture: {error.strerror or error}") from error
    finally:
        pyplot.close(figure)
