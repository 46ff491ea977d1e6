"""The parts of hivemind this project uses, and the only place that imports it.

``import hivemind`` runs its package's ``__init__``, which imports everything hivemind can do: averaging, optimizers,
mixtures of experts, and for them SciPy. Here only its p2p and DHT modules are wanted. So the package is entered into
``sys.modules`` as a bare namespace first, and its ``__init__`` never runs: a peer starts over a second earlier and
is 50 MB smaller. If somebody has imported hivemind already, theirs is used.
"""

from __future__ import annotations

import importlib.util
import sys


def _enter_bare_package() -> None:
    if "hivemind" in sys.modules:
        return
    spec = importlib.util.find_spec("hivemind")
    if spec is None:
        raise ModuleNotFoundError("hivemind is not installed: run `make install`, or `pip install hivemind`")
    sys.modules["hivemind"] = importlib.util.module_from_spec(spec)


_enter_bare_package()

from hivemind.dht.node import DHTNode  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.dht.storage import DictionaryDHTValue  # noqa: E402
from hivemind.dht.validation import DHTRecord  # noqa: E402
from hivemind.p2p import P2P, PeerID  # noqa: E402
from hivemind.proto import p2pd_pb2  # noqa: E402
from hivemind.utils.multiaddr import Multiaddr  # noqa: E402
from hivemind.utils.timed_storage import TimedStorage, ValueWithExpiration  # noqa: E402

__all__ = [
    "DHTID",
    "P2P",
    "DHTNode",
    "DHTRecord",
    "DictionaryDHTValue",
    "Multiaddr",
    "PeerID",
    "TimedStorage",
    "ValueWithExpiration",
    "p2pd_pb2",
]
