"""Giving back library pages that only starting up needed.

Importing torch maps over a hundred megabytes of its libraries that training never touches again. They are clean file
pages: the kernel can take them back at any time, but until it needs to, they count as this process's resident memory,
in ``top`` and in a container's accounts. So they are unmapped once: after a volunteer's first training step, and when a
bootstrap node has settled. What is still used is mapped again at its next use, from the page cache.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

MADV_DONTNEED = 4
LEAST_BYTES = 1 << 20
"""Smaller mappings are not worth a system call."""

_HEADER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(\S*)")


def release_startup_pages(smaps: Path = Path("/proc/self/smaps")) -> int:
    """Unmap clean pages of mapped files; the resident bytes they took. Without ``/proc``, does nothing.

    Only mappings that cannot be written and hold no page of their own are touched: dropping a clean page of a file
    loses nothing, dropping a changed one (relocations) would end the process.
    """
    try:
        text = smaps.read_text()
        madvise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return 0
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    released = 0
    for start, length, resident in _clean_mappings(text):
        if madvise(start, length, MADV_DONTNEED) == 0:
            released += resident
    return released


def _clean_mappings(smaps: str) -> Iterator[tuple[int, int, int]]:
    """Address, length and resident bytes of the mappings that may be dropped."""
    for entry in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", smaps):
        header, _, details = entry.partition("\n")
        match = _HEADER.match(header)
        if match is None or "w" in match[3] or "s" in match[3] or not match[4].startswith("/"):
            continue
        sizes = {name: int(kilobytes) << 10 for name, kilobytes in re.findall(r"(\w+): +(\d+) kB", details)}
        changed = sizes.get("Private_Dirty", 1) or sizes.get("Anonymous", 1) or sizes.get("Shared_Dirty", 1)
        if not changed and sizes.get("Rss", 0) >= LEAST_BYTES:
            start = int(match[1], 16)
            yield start, int(match[2], 16) - start, sizes["Rss"]
