"""A short-lived folder of mode 0700 for sockets, removed on stop; leftovers of killed processes are swept.

A process that ends by ``kill -9`` cannot clean up. Each folder therefore holds a lock its owner keeps, and whoever
starts next removes the folders whose lock nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from blockswarm.dht.errors import HostError

_PREFIX = "blockswarm-p2pd-"
_LOCK = "owner.lock"
"""Together with the prefix it marks a folder as one of ours: nothing else may ever be swept."""
_NEW_LOCK = "new-owner.lock"
_LONGEST_NAME = 32
_SOCKET_PATH_LIMIT = 107
"""Linux keeps the path of a unix socket in 108 bytes, one of them the final zero."""
_UNLOCKED_AGE = 600.0


class PrivateFolder:
    """See the module; made by `create`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def create(cls) -> PrivateFolder:
        """A new folder with a path short enough for unix sockets.

        Raises
        ------
        HostError
            If no temporary folder can be used.
        """
        error: OSError | None = None
        for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
            if len(os.fsencode(parent)) + len(_PREFIX) + 10 + _LONGEST_NAME > _SOCKET_PATH_LIMIT:
                continue
            try:
                _sweep(Path(parent))
                path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
                # The lock gets its name only once it is held: a sweeper never sees it free while we live.
                lock = os.open(path / _NEW_LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                with contextlib.suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (path / _NEW_LOCK).rename(path / _LOCK)
            except OSError as caught:
                error = caught
                continue
            return cls(path, lock)
        raise HostError(f"no usable temporary folder for sockets ({error or 'its path is too long'}); set TMPDIR")

    def remove(self) -> None:
        """Delete the folder with everything in it; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sweep(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                info = path.lstat()
                if info.st_uid == os.getuid() and path.is_dir() and not path.is_symlink():
                    _remove_if_abandoned(path, info.st_mtime)


def _remove_if_abandoned(path: Path, modified: float) -> None:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Not one of ours, or one being made this moment; without any lock file for long it is neither.
        if time.time() - modified > _UNLOCKED_AGE and (path / _NEW_LOCK).exists():
            shutil.rmtree(path, ignore_errors=True)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
