"""One peer on the network: identity, p2pd, DHT node and calls, started and stopped as one thing."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blockswarm.clock import Clock
from blockswarm.dht import addresses, frames, kademlia
from blockswarm.dht.address_book import AddressBook
from blockswarm.dht.builtin import register_builtin_methods
from blockswarm.dht.calls import Caller
from blockswarm.dht.clock_offset import measure_offset
from blockswarm.dht.control import Control, ControlError, StreamServer
from blockswarm.dht.daemon import Daemon
from blockswarm.dht.dialing import dial
from blockswarm.dht.errors import HostError, IdentityError
from blockswarm.dht.identity import Identity, IdentityLock
from blockswarm.dht.identity_check import running_elsewhere
from blockswarm.dht.keeper import Keeper
from blockswarm.dht.known_peers import KnownPeers
from blockswarm.dht.rpc import Blob, BlobLimit, Handler, Reply, RpcServer, Traffic
from blockswarm.dht.validator import SignedRecordValidator
from blockswarm.naming import option

logger = logging.getLogger(__name__)

DIAL_SECONDS = 5.0
MAX_ADDRS = 8
STOP_SECONDS = 0.5  # for each part that is asked to end by itself


class Host:
    """A running peer. Made by `start`, ended by `stop`.

    Attributes
    ----------
    peer_id : str
    identity : Identity
    clock : Clock
    node : hivemind.dht.node.DHTNode
        The Kademlia node; bound every await on it.
    warnings : list of str
        What the user should know, one line each (for instance that nobody can reach this peer).
    describe : callable, optional
        Returns ``runs``, ``block``, ``state`` and ``round`` for the built-in method ``hello``.
    daemon_died : asyncio.Future of str
        Resolved with a reason when this host can no longer work: p2pd is gone, or our identity runs elsewhere.
    instance : str
        Random text that tells this start of the peer from any other.
    started : float
        Unix seconds.
    published : dict
        DHT key → expiration of this peer's newest record there, for `Directory`.
    """

    def __init__(self, identity: Identity, clock: Clock, lock: IdentityLock, daemon: Daemon) -> None:
        self.identity = identity
        self.peer_id = identity.peer_id
        self.clock = clock
        self.instance = secrets.token_hex(8)
        self.started = clock.now()
        self.warnings: list[str] = []
        self.describe: Callable[[], Mapping[str, Any]] | None = None
        self.daemon_died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.published: dict[str, float] = {}
        self.traffic = Traffic()
        self.book = AddressBook(self.peer_id)
        self.control = Control(daemon.control_path)
        self.node: Any = None
        self._announce: list[str] = []
        self._addresses: list[str] = []
        self._lock = lock
        self._daemon = daemon
        self._p2p: Any = None
        self._server = RpcServer(self.traffic)
        self._streams: StreamServer | None = None
        self._keeper: Keeper | None = None
        self._caller = Caller(self.peer_id, self.control, self.book, self.traffic)
        self._watch: asyncio.Task[None] | None = None
        self._stopping = False

    @classmethod
    async def start(
        cls,
        identity: Identity,
        *,
        listen: Sequence[str],
        announce: Sequence[str] = (),
        initial_peers: Sequence[str] = (),
        run_digest: bytes | None = None,
        clock: Clock,
        known_peers: KnownPeers | None = None,
        relay: str = "on",
        port_mapping: bool | None = None,
        startup_timeout: float = 15.0,
    ) -> Host:
        """Start listening at once; connect to the initial peers in the background, for as long as it takes.

        Parameters
        ----------
        identity : Identity
            Its file, if it has one, stays locked until `stop`.
        listen : sequence of str
            Multiaddrs such as ``/ip4/0.0.0.0/tcp/4001``; port 0 takes a free one.
        announce : sequence of str
            Multiaddrs to tell others instead.
        initial_peers : sequence of str
            Full multiaddrs of bootstrap peers; none of them needs to be alive.
        run_digest : bytes, optional
            Manifest digest for run-bound methods, see `set_run`.
        clock : Clock
            The swarm's time.
        known_peers : KnownPeers, optional
            Peers met earlier, tried besides ``initial_peers`` and kept up to date.
        relay : {"on", "auto", "off"}
            See `Daemon.start`; with ``auto`` the initial peers are the relays.
        port_mapping : bool, optional
            Ask the home router for a port; default is to do so unless it listens on loopback only or has addresses to
            announce.
        startup_timeout : float
            Seconds the daemon may take.

        Raises
        ------
        AddressError, PortError
            A bad address (naming ``listen`` or ``announce``); a port that is taken.
        IdentityError
            The identity is running already, here or elsewhere.
        HostError
            The daemon does not start.
        """
        listen = addresses.check_listen(listen)
        announce = addresses.check_announce(announce, identity.peer_id)
        for addr in initial_peers:
            addresses.parse_multiaddr(addr, need_peer=True)
        addresses.check_port_free(listen)
        if port_mapping is None:
            port_mapping = not announce and not all(map(addresses.is_loopback, listen))
        lock = identity.lock()
        # An identity that exists only in memory cannot run twice.
        check = identity.path is not None and bool(initial_peers)
        elsewhere = asyncio.create_task(running_elsewhere(identity.peer_id, initial_peers)) if check else None
        try:
            daemon = await Daemon.start(
                identity,
                listen=listen,
                announce=announce,
                relay=relay,
                trusted_relays=initial_peers,
                port_mapping=port_mapping,
                timeout=startup_timeout,
            )
            host = cls(identity, clock, lock, daemon)
            try:
                if elsewhere is not None and (where := await elsewhere) is not None:
                    raise IdentityError(
                        f"identity {identity.peer_id} is already running elsewhere (answered through {where}); "
                        "stop that peer or use another identity file"
                    )
                async with asyncio.timeout(startup_timeout):
                    await host._begin(listen, announce, initial_peers, run_digest, known_peers)
            except BaseException:
                await host.stop()
                raise
        except BaseException as error:
            if elsewhere is not None:
                elsewhere.cancel()
                await asyncio.gather(elsewhere, return_exceptions=True)
            lock.release()
            if isinstance(error, TimeoutError):
                raise HostError(f"the p2p host did not start within {startup_timeout:.0f} s") from None
            raise
        return host

    async def _begin(
        self,
        listen: Sequence[str],
        announce: Sequence[str],
        initial_peers: Sequence[str],
        run_digest: bytes | None,
        known_peers: KnownPeers | None,
    ) -> None:
        self._daemon.died.add_done_callback(lambda died: self.fail(died.result()))
        self._announce = list(announce)
        await self.refresh_addresses()
        self._check_listening(listen)
        if warning := addresses.reachability_warning(self._addresses):
            self.warnings.append(warning)
            logger.warning("%s", warning)
        self._p2p = await kademlia.attach(self._daemon)
        self._watch = asyncio.create_task(self._watch_connection())
        self.node = await kademlia.create_node(self._p2p, SignedRecordValidator(self.clock), self.peer_id)
        self.set_run(run_digest)
        register_builtin_methods(self)
        self._streams = await self.control.accept_streams(
            frames.PROTOCOL_ID, self._daemon.folder / "streams", self._server.serve
        )
        self._keeper = Keeper(self, initial_peers, known_peers)
        self._keeper.start()

    def set_run(self, run_digest: bytes | None) -> None:
        """Take part in the run with this manifest digest: run-bound methods answer its members only."""
        self._server.run_digest = run_digest

    def addresses(self) -> list[str]:
        """Full multiaddrs others can try, the public ones first; at most 8."""
        return list(self._addresses)

    @property
    def relayed(self) -> bool:
        """Whether this peer can be reached through relays only."""
        return bool(self._addresses) and all(map(addresses.is_relayed, self._addresses))

    @property
    def bytes_sent(self) -> int:
        """Payload of calls sent so far, in bytes."""
        return self.traffic.sent

    @property
    def bytes_received(self) -> int:
        """Payload of calls received so far, in bytes."""
        return self.traffic.received

    def connected_peers(self) -> list[str]:
        """Peer ids connected when last looked (every few seconds)."""
        return sorted(self._keeper.connected) if self._keeper else []

    def met(self, peer_id: str) -> None:
        """A call came in: its sender is connected, without waiting for the next look."""
        if self._keeper is not None:
            self._keeper.connected.add(peer_id)

    def learn(self, peer_id: str, addrs: Sequence[str]) -> None:
        """Note the addresses of a peer, so that it can be called."""
        self.book.learn(peer_id, addrs)

    def register(
        self,
        method: str,
        handler: Handler,
        *,
        max_blob: BlobLimit = 0,
        run_bound: bool = True,
        timeout: float = 30.0,
    ) -> None:
        """Answer calls of ``method``.

        Parameters
        ----------
        method : str
            Its name on the wire, at most 64 characters.
        handler : callable
            ``await handler(Request) -> Reply``; it may raise `RpcRefused`. What else it raises is logged here and
            travels as ``internal`` without its text.
        max_blob : int or callable
            Largest request blob in bytes, or ``f(peer_id, body, declared length)`` asked before the blob is read; it
            may raise `RpcRefused`.
        run_bound : bool
            Answer only callers of the same run.
        timeout : float
            Seconds the handler may take.
        """
        self._server.register(method, handler, max_blob=max_blob, run_bound=run_bound, timeout=timeout)

    async def call(
        self,
        peer_id: str,
        method: str,
        body: Mapping[str, Any],
        *,
        blob: Blob = b"",
        max_blob: int = 0,
        timeout: float,
    ) -> Reply:
        """Call ``method`` of another peer, on a stream of its own that is closed in every case.

        Parameters
        ----------
        peer_id : str
            Connected, learned (`learn`), or one the network can find.
        method : str
            Name the peer registered.
        body : mapping
            Plain msgpack types, at most 1 MiB packed.
        blob : bytes-like
            Raw bytes to send along.
        max_blob : int
            Largest blob to accept in the reply, in bytes.
        timeout : float
            Seconds for everything, dialling included.

        Raises
        ------
        RpcError
            See its codes; nothing else is raised for what happens on the network.
        """
        return await self._caller.call(peer_id, method, body, blob, max_blob, timeout, run=self._server.run_digest)

    async def connect(self, addr: str, timeout: float = DIAL_SECONDS) -> None:
        """Connect to a peer by its full multiaddr and enter each other's routing tables.

        Raises
        ------
        AddressError
            If the address is malformed.
        HostError
            If nobody (or somebody else) answers there; the message says which address and why.
        """
        _, peer_id = addresses.split_peer(addr)
        try:
            await dial(self.control, peer_id, [addr], timeout)
        except ControlError as error:
            raise HostError(f"{addr}: {error}") from None
        self.book.learn(peer_id, dict.fromkeys([addr, *self.book.addrs(peer_id)]))
        self._caller.reached(peer_id)
        if self._keeper is not None:
            await self._keeper.introduce(peer_id)

    async def ping(self, peer_id: str) -> bool:
        """Ask a connected peer's DHT node for a sign of life; it enters the routing table."""
        try:
            async with asyncio.timeout(2 * kademlia.RPC_SECONDS):
                return await self.node.protocol.call_ping(kademlia.to_peer_id(peer_id)) is not None
        except TimeoutError:
            return False

    async def measure_offset(self, peers: Sequence[str], *, timeout: float = 3.0) -> float | None:
        """How far this clock is behind the peers' clocks: the median over ``peers``, in seconds.

        Per peer, of three exchanges the quickest counts (NTP: the error is at most half its round trip).

        Returns
        -------
        float or None
            To be added to our clock; None when no peer answered.
        """
        return await measure_offset(self, peers, timeout)

    def fail(self, reason: str) -> None:
        """This host cannot go on: tell whoever watches `daemon_died`."""
        if not self._stopping and not self.daemon_died.done():
            logger.error("%s", reason)
            self.daemon_died.set_result(reason)

    async def stop(self) -> None:
        """End everything within 3 seconds, whatever hangs. May be called twice."""
        self._stopping = True
        try:
            if self._keeper is not None:
                await self._keeper.stop()
            if self._streams is not None:
                self._streams.close()
            if self.node is not None:
                await _within(STOP_SECONDS, self.node.shutdown())
            if self._p2p is not None:
                await _within(STOP_SECONDS, self._p2p.shutdown())
            if self._watch is not None:
                self._watch.cancel()
        finally:
            await self._daemon.stop()
            self._lock.release()

    async def refresh_addresses(self) -> None:
        """Ask the daemon again where this peer can be reached (relays and observed addresses come and go)."""
        if self._announce:
            found = self._announce
        else:
            _, found = await self.control.identify()
        self._addresses = addresses.best(found, self.peer_id, MAX_ADDRS)

    def _check_listening(self, listen: Sequence[str]) -> None:
        if self._announce:
            return
        ports = {(a.transport, a.port) for a in map(addresses.parse, self._addresses)}
        for addr in listen:
            address = addresses.parse(addr)
            if address.port and (address.transport, address.port) not in ports:
                raise HostError(f"p2pd does not listen on {addr}; choose another address for {option('listen')}")

    async def _watch_connection(self) -> None:
        """Without hivemind's reader of p2pd's answers, the DHT would wait for ever: then this host is at its end."""
        control = self._p2p._client.control
        await asyncio.wait([control._read_task, control._write_task], return_when=asyncio.FIRST_COMPLETED)
        # The usual reason is that p2pd ended; that is then the better message.
        await asyncio.wait([self._daemon.died], timeout=1.0)
        self.fail("the connection to p2pd broke")
        await asyncio.gather(control._read_task, control._write_task, return_exceptions=True)


async def _within(seconds: float, awaitable: Any) -> None:
    """Wait for something that should end by itself, but never long, and never for its errors."""
    try:
        async with asyncio.timeout(seconds):
            await awaitable
    except Exception:
        logger.debug("did not end by itself", exc_info=True)
