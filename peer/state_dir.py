"""The folder one peer keeps its identity and checkpoints in, held by one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from blockswarm.errors import BlockswarmError
from blockswarm.naming import option

LOCK_NAME = "lock"
MAX_PEERS_PER_FOLDER = 1000
"""Bound of the search for a free folder."""

_held: dict[Path, int] = {}
"""Locks of this process: resolved folder to file descriptor. They end with the process, however it ends."""


class StateDirError(BlockswarmError):
    """The state folder cannot be used: not writable, or another process holds it."""


def claim_state_dir(folder: Path) -> Path:
    """Make ``folder`` where missing and hold it until this process ends. Claiming it again in this process is harmless.

    Raises
    ------
    StateDirError
        When it cannot be written, or another running process holds it.
    """
    if not _claim(folder):
        own = option("state_dir")
        raise StateDirError(f"{folder}: another running peer uses this state folder; give this one its own with {own}")
    return folder


def claim_free_state_dir(root: Path, prefix: str) -> Path:
    """Claim the first of ``root/prefix-1``, ``root/prefix-2``, … that no running process holds.

    A peer that is started again in the same place so takes up its old identity and checkpoints, and several started
    beside each other, even in the same instant, each get their own.
    """
    for number in range(1, MAX_PEERS_PER_FOLDER + 1):
        folder = root / f"{prefix}-{number}"
        if _claim(folder):
            return folder
    taken = f"{root}: all of {prefix}-1 … {prefix}-{MAX_PEERS_PER_FOLDER} are in use"
    raise StateDirError(f"{taken}; give another folder with {option('state_dir')}")


def _claim(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        resolved = folder.resolve()
        if resolved in _held:
            return True
        lock = os.open(resolved / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateDirError(
            f"{folder}: cannot write to the state folder: {error.strerror}; choose another with {option('state_dir')}"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        another = option("state_dir")
        raise StateDirError(f"{folder}: cannot be locked: {error.strerror}; choose another with {another}") from error
    _held[resolved] = lock
    return True
