"""Targets: files that may have come from strangers, or lost a fight with a disk."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blockswarm.dht.addresses import parse
from blockswarm.dht.errors import AddressError, IdentityError, PeersFileError
from blockswarm.dht.identity import Identity
from blockswarm.dht.known_peers import MAX_PEERS, KnownPeers
from blockswarm.dht.packing import PackingError, pack, unpack_map
from blockswarm.dht.peers_file import read_peers_file
from blockswarm.model.errors import ModelError
from blockswarm.model.ngram import NgramModel
from blockswarm.model.ngram_file import build_ngram_file
from blockswarm.peer.checkpoint import Checkpoint, CheckpointFolder
from blockswarm.peer.states import State
from blockswarm.swarm.errors import GivenFolderError, ManifestError
from blockswarm.swarm.manifest import EMBEDDING, Manifest
from blockswarm.swarm.model_folder import SavedState, file_name, read_model_folder
from blockswarm.swarm.model_writer import write_model_folder
from tests.fuzz.target import IDENTITIES, MIB, Target, manifest

PEER = IDENTITIES[0].peer_id


@functools.cache
def scratch() -> Path:
    """A folder for this process's files and those of its children; in memory where the machine has such a place.

    Whoever forks asks for it first: a child that libFuzzer ends tidies nothing up.
    """
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="blockswarm-fuzz-", dir=memory if memory.is_dir() else None))
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(made, ignore_errors=True))
    return made


def _file(name: str, data: bytes, mode: int = 0o600) -> Path:
    path = scratch() / name
    path.write_bytes(data)
    path.chmod(mode)
    return path


# -- manifests ---------------------------------------------------------------------------------------------------------


def canonical_manifest(data: bytes) -> bool:
    """A manifest that is read has these bytes and no others, and survives TOML."""
    try:
        read = Manifest.from_canonical(data)
    except ManifestError as error:
        assert str(error).isprintable() and len(str(error)) < 20_000
        return False
    assert read.canonical() == data
    assert Manifest.from_toml(read.to_toml()).digest == read.digest
    return True


def toml_manifest(data: bytes) -> bool:
    """A manifest that is read is one that can be sent."""
    try:
        read = Manifest.load(_file("swarm.toml", data))
    except ManifestError as error:
        assert str(error).isprintable() and len(str(error)) < 20_000
        return False
    assert Manifest.from_canonical(read.canonical()) == read
    return True


# -- n-gram files ------------------------------------------------------------------------------------------------------

_ASKED = np.frombuffer(b"the rugged\x00\xff rocks, the ra", np.uint8)[None]


def ngram_file(data: bytes) -> bool:
    """Whatever passes the checks answers everything with probabilities."""
    try:
        model = NgramModel(data)
    except ModelError:
        return False
    rows = model.log_probs(_ASKED)
    assert np.isfinite(rows).all()
    assert np.abs(np.exp(rows.astype(np.float64)).sum(axis=-1) - 1).max() < 1e-4
    return True


def _ngram_seeds() -> list[bytes]:
    text = np.frombuffer(b"round the rugged rocks the ragged rascal ran. " * 8, np.uint8)
    return [build_ngram_file(text, order=order, min_count=least) for order, least in ((1, 1), (3, 1), (4, 2))]


# -- safetensors -------------------------------------------------------------------------------------------------------


def safetensors(tensors: Mapping[str, tuple[str, list[int], bytes]], notes: Mapping[str, str]) -> bytes:
    """A file of these tensors (kind, shape, bytes), as the format says and also where no library would write it."""
    header: dict[str, Any] = {"__metadata__": dict(notes)}
    place = 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [place, place + len(data)]}
        place += len(data)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(data for _, _, data in tensors.values())


def taken_apart(data: bytes) -> tuple[dict[str, tuple[str, list[int], bytes]], dict[str, str]]:
    """The inverse, for a file that a library wrote."""
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    notes = header.pop("__metadata__")
    found = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        found[name] = (about["dtype"], about["shape"], data[8 + size + begin : 8 + size + end])
    return found, notes


def changed(good: bytes, data: bytes) -> bytes | None:
    """A file with the changes that ``data`` describes, its notes made to hash to their digest again.

    ``data`` is a msgpack map: ``{"notes": {name: text}, "tensors": {name: [kind, shape, bytes]}}``. Digests would
    otherwise stop every mutation; but whoever writes a file writes them too.
    """
    try:
        wanted = unpack_map(data, max_bytes=MIB)
    except PackingError:
        return None
    tensors, notes = taken_apart(good)
    changes, others = wanted.get("notes"), wanted.get("tensors")
    if isinstance(changes, dict):
        notes |= {name: value for name, value in changes.items() if isinstance(value, str)}
    if isinstance(others, dict):
        for name, value in others.items():
            match value:
                case [str(kind), list(shape), bytes(values)] if all(type(side) is int for side in shape):
                    tensors[name] = kind, shape, values
                case _:
                    tensors.pop(name, None)
    notes["sha256"] = _digest_of(notes)
    return safetensors(tensors, notes)


def _digest_of(notes: Mapping[str, str]) -> str:
    rows = (f"{key}\0{value}\n" for key, value in sorted(notes.items()) if key != "sha256")
    return hashlib.sha256("".join(rows).encode(errors="replace")).hexdigest()


# -- model folders -----------------------------------------------------------------------------------------------------


@functools.cache
def _model() -> tuple[Path, bytes]:
    """A model folder, and the file of its embedding."""
    folder = scratch() / "model"
    states = [SavedState(subject, manifest().verify_genesis(subject), 0, 0) for subject in manifest().subjects]
    write_model_folder(folder, manifest(), states)
    return folder, (folder / file_name(EMBEDDING)).read_bytes()


def model_file(data: bytes) -> bool:
    """A model folder is read whole, or the file at fault is named in one line."""
    folder, _ = _model()
    (folder / file_name(EMBEDDING)).write_bytes(data)
    try:
        read = read_model_folder(folder)
    except GivenFolderError as error:
        assert "embedding.safetensors" in str(error) and str(error).isprintable()
        return False
    state = read.states[EMBEDDING]
    assert state.values.shape == (manifest().parameters(EMBEDDING),) and np.isfinite(state.values).all()
    assert state.round >= 0 and state.samples >= 0
    return True


def model_notes(data: bytes) -> bool:
    """The same, where the writer of the file knows what must hash to what."""
    made = changed(_model()[1], data)
    return made is not None and model_file(made)


# -- checkpoints -------------------------------------------------------------------------------------------------------


@functools.cache
def _checkpoint() -> tuple[Path, bytes]:
    """A state folder, and the one checkpoint in it."""
    folder = scratch() / "state"
    block, embedding = State.genesis(manifest(), 1), State.genesis(manifest(), EMBEDDING)
    made = Checkpoint(
        block=block, embedding=embedding, theta=block.values, live_embedding=embedding.values, pending={1: 2.5}
    )
    return folder, CheckpointFolder(folder).save(made, manifest()).read_bytes()


def checkpoint(data: bytes) -> bool:
    """A checkpoint is intact, or passed over by name."""
    folder, _ = _checkpoint()
    (folder / "checkpoints" / "round-00000000.safetensors").write_bytes(data)
    found = CheckpointFolder(folder).load_newest(manifest())
    if found.checkpoint is None:
        assert len(found.skipped) == 1 and found.skipped[0].isprintable()
        return False
    read = found.checkpoint
    assert 0 <= read.block.subject < 2 and read.block.round >= 0 and read.block.samples >= 0
    assert all(0 <= samples < float("inf") for samples in read.pending.values())
    assert np.isfinite(read.theta).all() and np.isfinite(read.block.values).all()
    return True


def checkpoint_notes(data: bytes) -> bool:
    """The same, where the writer of the file knows what must hash to what."""
    made = changed(_checkpoint()[1], data)
    return made is not None and checkpoint(made)


def _note_seeds(good: bytes, prefix: str = "") -> list[bytes]:
    (name, (_, shape, values)), *_ = taken_apart(good)[0].items()
    kinds = ("F32", "F16", "BF16", "F64", "F8_E4M3", "BOOL", "I64", "U8", "C64")
    notes = [{prefix + "certificate": "c2lnbmVk"}, {}]
    notes += [{prefix + name: value} for name in ("round", "samples", "pending") for value in ("1", "20")]
    return [pack({"notes": one, "tensors": {}}) for one in notes] + [
        pack({"notes": {}, "tensors": {name: [kind, shape, values]}}) for kind in kinds
    ]


# -- identities and addresses ------------------------------------------------------------------------------------------


def identity_file(data: bytes) -> bool:
    """An identity that is read is the one that was written."""
    try:
        read = Identity.load(_file("identity.key", data))
    except IdentityError as error:
        assert str(error).isprintable()
        return False
    assert read.to_bytes() == data
    return True


def peers_file(data: bytes) -> bool:
    """Every address that a peers file gives can be dialled, and bad lines are named in one line."""
    try:
        addrs = read_peers_file(_file("peers.txt", data))
    except PeersFileError as error:
        assert str(error).isprintable() and len(str(error)) < 60_000
        return False
    assert len(set(addrs)) == len(addrs) and all(parse(addr).peer_id for addr in addrs)
    return True


def known_peers(data: bytes) -> bool:
    """A damaged list is a fresh start; one that is read can be saved and read again."""
    known = KnownPeers(_file("known.json", data))
    addrs = known.addrs()
    assert len(addrs) <= 4 * MAX_PEERS and all(parse(addr).peer_id for addr in addrs)
    return bool(addrs)


def address(data: bytes) -> bool:
    """A multiaddr that is taken apart is the one that was given."""
    try:
        text = data.decode()
        read = parse(text)
    except UnicodeDecodeError:
        return False
    except AddressError as error:
        assert str(error).isprintable()
        return False
    assert read.text == text and text.isprintable() and 0 <= read.port <= 65535
    assert read.peer_id is None or read.bare + f"/p2p/{read.peer_id}" == text
    return True


_ADDRESSES = [
    "/ip4/127.0.0.1/tcp/4001",
    f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}",
    f"/ip6/2001:db8::1/udp/4001/quic-v1/p2p/{PEER}",
    f"/dns4/peers.example.org/tcp/443/ws/p2p/{PEER}",
    f"/ip4/192.0.2.7/tcp/4001/p2p/{IDENTITIES[1].peer_id}/p2p-circuit/p2p/{PEER}",
]

TARGETS = [
    Target("canonical-manifest", canonical_manifest, lambda: [manifest().canonical()], memory=16 * MIB),
    Target("toml-manifest", toml_manifest, lambda: [manifest().to_toml().encode()], memory=64 * MIB),
    Target("ngram-file", ngram_file, _ngram_seeds, memory=48 * MIB),
    Target("model-file", model_file, lambda: [_model()[1]], memory=8 * MIB),
    Target("model-notes", model_notes, lambda: _note_seeds(_model()[1]), memory=16 * MIB, longest=64 << 10),
    Target("checkpoint", checkpoint, lambda: [_checkpoint()[1]], memory=8 * MIB),
    Target(
        "checkpoint-notes",
        checkpoint_notes,
        lambda: _note_seeds(_checkpoint()[1], "block."),
        memory=16 * MIB,
        longest=64 << 10,
    ),
    Target("identity-file", identity_file, lambda: [IDENTITIES[0].to_bytes()]),
    Target("peers-file", peers_file, lambda: ["\n".join(["# here", "", *_ADDRESSES[1:]]).encode()], memory=32 * MIB),
    Target("known-peers", known_peers, lambda: [json.dumps({"peers": [_ADDRESSES[1:4]]}).encode()], memory=32 * MIB),
    Target("address", address, lambda: [text.encode() for text in _ADDRESSES], memory=8 * MIB),
]
