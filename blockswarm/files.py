"""Writing files so that a crash, a full disk or a second process never leaves a half-written one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644, overwrite: bool = True) -> None:
    """Write ``data`` to ``path`` in full or not at all.

    The bytes go to a temporary file in the same folder, are flushed to disk, and take the name in one step.

    Parameters
    ----------
    path : Path
        Target file; its folder must exist.
    data : bytes
        The whole content.
    mode : int
        Permission bits of the new file.
    overwrite : bool
        When false, an existing file is left as it is.

    Raises
    ------
    FileExistsError
        If ``overwrite`` is false and ``path`` exists.
    OSError
        As the operating system reports it (no space, no permission). Nothing is left behind.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)
            temporary.unlink()
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
