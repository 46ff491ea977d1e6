"""The bootstrap peers file: every bad line named at once, comments kept."""

from __future__ import annotations

import pytest

from blockswarm.dht.errors import AddressError, PeersFileError
from blockswarm.dht.peers_file import add_to_peers_file, read_peers_file
from tests.dht.world import NOBODY

ONE = f"/ip4/192.0.2.1/tcp/4001/p2p/{NOBODY}"
OTHER = "/dns4/swarm.example.org/tcp/4001/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bootstrap_peers.txt"


def test_comments_blank_lines_and_line_ends_do_not_matter(path):
    path.write_bytes(f"\ufeff# peers\r\n\r\n  {ONE}  # ours\r\n{OTHER}\n{ONE}\n".encode())
    assert read_peers_file(path) == [ONE, OTHER]


def test_a_malformed_address_is_named_with_file_and_line_and_reason_all_at_once(path):
    path.write_text(f"# peers\n{ONE}\n/ip4/192.0.2.1/tcp/4001\nhello\n\n/ip4/1.2.3.4/udp/1/quic/p2p/{NOBODY}\n")
    with pytest.raises(PeersFileError) as caught:
        read_peers_file(path)
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [f"{path}:{n}" for n in (3, 4, 6)]
    assert "must end in /p2p/PEER" in caught.value.problems[0]
    assert "starts with '/'" in caught.value.problems[1]
    assert "/quic-v1" in caught.value.problems[2]
    assert str(caught.value).startswith("3 bad lines in the peers file: ")
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_kind_is_told_in_a_line_that_can_be_read(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not an address\n" * 500)
    with pytest.raises(PeersFileError) as caught:
        read_peers_file(path)
    assert str(caught.value).startswith("100 or more bad lines") and str(caught.value).endswith("…")
    assert len(str(caught.value)) < 5000


def test_an_empty_file_has_no_peers(path):
    path.write_text("# nobody yet\n")
    assert read_peers_file(path) == []


def test_a_missing_unreadable_or_foreign_file(path, tmp_path):
    with pytest.raises(PeersFileError, match="does not exist"):
        read_peers_file(path)
    with pytest.raises(PeersFileError, match="cannot be read: Is a directory"):
        read_peers_file(tmp_path)
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(PeersFileError, match="is not text"):
        read_peers_file(path)
    path.write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(PeersFileError, match="larger than 1 MiB"):
        read_peers_file(path)


def test_adding_makes_the_file_and_keeps_what_is_there(path):
    add_to_peers_file(path, ONE)
    assert path.read_text().startswith("# ")
    path.write_text("# my friends\n" + OTHER + "  # Bob\n")
    add_to_peers_file(path, ONE)
    assert path.read_text() == f"# my friends\n{OTHER}  # Bob\n{ONE}\n"
    add_to_peers_file(path, ONE)
    assert read_peers_file(path) == [OTHER, ONE]


def test_a_peer_that_comes_back_on_another_port_leaves_one_line(path):
    add_to_peers_file(path, ONE)
    add_to_peers_file(path, OTHER)
    add_to_peers_file(path, ONE.replace("4001", "4002"))
    add_to_peers_file(path, ONE.replace("/tcp/4001", "/udp/4001/quic-v1"))
    assert read_peers_file(path) == [
        OTHER,
        ONE.replace("4001", "4002"),
        ONE.replace("/tcp/4001", "/udp/4001/quic-v1"),
    ]


def test_a_bad_address_is_not_added(path):
    with pytest.raises(AddressError):
        add_to_peers_file(path, "/ip4/192.0.2.1/tcp/4001")
    assert not path.exists()


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(PeersFileError, match="cannot be written: No such file"):
        add_to_peers_file(tmp_path / "no" / "peers.txt", ONE)
