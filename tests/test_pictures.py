"""Pictures: one line where they cannot be drawn or written, and nothing stays open."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from blockswarm.pictures import PictureError, pyplot, save_picture


def test_a_picture_is_written_and_its_figure_closed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    before = pyplot().get_fignums()
    figure, _ = pyplot().subplots()
    save_picture(figure, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert pyplot().get_fignums() == before


def test_a_folder_that_is_missing_is_told_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure, _ = pyplot().subplots()
    with pytest.raises(PictureError, match=r"nowhere/picture\.png: cannot write the picture: No such file"):
        save_picture(figure, tmp_path / "nowhere" / "picture.png")


def test_without_matplotlib_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PictureError, match=r"pip install 'blockswarm\[experiments\]'"):
        pyplot()
