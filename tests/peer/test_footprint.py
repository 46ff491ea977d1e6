"""Library pages that only starting up needed are given back, and nothing else is touched."""

import subprocess
import sys

from blockswarm.peer.footprint import release_startup_pages

SMAPS = """\
{first}-{last} {permissions} 00000000 fe:00 1 {path}
Rss:                {rss} kB
Shared_Dirty:          0 kB
Private_Dirty:         {dirty} kB
Anonymous:             {dirty} kB
"""


def entry(**changes: object) -> str:
    values = {"first": "10000", "last": "20000", "permissions": "r-xp", "path": "/lib/x.so", "rss": 4096, "dirty": 0}
    return SMAPS.format(**values | changes)


def test_only_clean_pages_of_files_that_cannot_be_written_may_go(tmp_path):
    from blockswarm.peer.footprint import _clean_mappings

    keep = [
        entry(dirty=4),
        entry(permissions="rw-p"),
        entry(permissions="r--s"),
        entry(path=""),
        entry(path="[heap]"),
        entry(rss=8),
    ]
    assert list(_clean_mappings("".join(keep))) == []
    assert list(_clean_mappings(keep[0] + entry())) == [(0x10000, 0x10000, 4096 << 10)]


def test_a_process_goes_on_computing_with_what_it_gave_back():
    code = (
        "import torch\n"
        "from blockswarm.peer.footprint import release_startup_pages\n"
        "before = torch.arange(64.0).reshape(8, 8) @ torch.eye(8)\n"
        "assert release_startup_pages() > 1 << 20\n"
        "assert torch.equal(torch.arange(64.0).reshape(8, 8) @ torch.eye(8), before)\n"
        "import json, decimal, sqlite3, torch.nn.functional as F\n"
        "F.softmax(torch.randn(4, 4), -1)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0


def test_without_proc_nothing_happens(tmp_path):
    assert release_startup_pages(tmp_path / "absent") == 0
