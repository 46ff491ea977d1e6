"""What a lookup in the directory costs, by the size of the swarm: hivemind's own search over hivemind's own tables.

    python -m benchmarks.lookups --nodes 30 100 300 1000 --stale 0 0.1 --json

No sockets: the routing tables are hivemind's, filled as traffic fills them (a node's neighbours by distance and a
sample of everybody else), the search is the one that ``dht/kademlia.py`` sets up, and time is virtual. Each request
takes one round trip drawn around ``--rtt``; one to a node that is gone takes the whole time-out. ``requests`` are those
of one search, ``round_trips`` its duration over ``--rtt``. ``--real N`` counts the requests of real hosts on loopback
instead, as many as the machine holds. The constants of ``swarm/simulation/directory.py`` come from here.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import random
import statistics
from collections.abc import Collection, Sequence
from typing import Any

from blockswarm.dht.hivemind_parts import DHTID
from blockswarm.dht.kademlia import BUCKET_SIZE, RPC_SECONDS
from tests.virtual_time import VirtualTimeLoop

WORKERS = 4
"""hivemind's default number of requests under way in one search."""
SAMPLE = 400
"""Others that a node has heard of by traffic, beside its neighbours."""
NEIGHBOURS = 40
"""Nearest others that a node knows: they are found by its own search at the start, and by those it answers."""


def tables(nodes: int, rng: random.Random) -> dict[Any, Any]:
    """Node id to hivemind routing table of a swarm of ``nodes``."""
    from hivemind.dht.routing import RoutingTable
    from hivemind.p2p import PeerID

    ids = [DHTID.generate(source=f"{nodes}.{number}") for number in range(nodes)]
    order = sorted(ids)
    place = {node: index for index, node in enumerate(order)}
    names = {node: PeerID(node.to_bytes()) for node in ids}
    made = {}
    for node in ids:
        table = RoutingTable(node, BUCKET_SIZE, depth_modulo=5)
        # Ids that are near by distance share their first bits, so they stand near in order, too.
        window = order[max(0, place[node] - 2 * NEIGHBOURS) : place[node] + 2 * NEIGHBOURS]
        near = heapq.nsmallest(NEIGHBOURS + 1, window, key=node.xor_distance)
        met = [*rng.sample(ids, min(nodes, SAMPLE)), *near]
        rng.shuffle(met)
        for other in met:
            if other != node:
                table.add_or_update_node(other, names[other])
        made[node] = table
    return made


async def search(known: dict[Any, Any], gone: set[Any], start: Any, key: Any, rtt: float, rng: random.Random) -> int:
    """One search from ``start``; the number of requests it made."""
    from hivemind.dht.traverse import traverse_dht

    requests = 0

    async def ask(peer: Any, queries: Collection[Any]) -> dict[Any, tuple[tuple[Any, ...], bool]]:
        nonlocal requests
        requests += 1
        if peer in gone:
            await asyncio.sleep(RPC_SECONDS)
            return dict.fromkeys(queries, ((), False))
        await asyncio.sleep(rtt * rng.lognormvariate(0.0, 0.5))
        nearest = {query: known[peer].get_nearest_neighbors(query, BUCKET_SIZE, exclude=peer) for query in queries}
        return {query: (tuple(node for node, _ in found if node != start), False) for query, found in nearest.items()}

    first = [node for node, _ in known[start].get_nearest_neighbors(key, BUCKET_SIZE, exclude=start)]
    await traverse_dht(
        queries=[key],
        initial_nodes=first,
        beam_size=BUCKET_SIZE,
        num_workers=WORKERS,
        queries_per_call=3,
        get_neighbors=ask,
        await_all_tasks=False,
    )
    return requests


def measure(nodes: int, stale: Sequence[float], searches: int, rtt: float, seed: int) -> list[dict[str, float]]:
    """One row for each share of nodes that are gone but still in others' tables."""
    rng = random.Random(seed)
    known = tables(nodes, rng)
    ids = list(known)
    rows = []
    for share in stale:
        gone = set(rng.sample(ids, int(share * nodes)))
        alive = [node for node in ids if node not in gone]
        counts, times = [], []
        for number in range(searches):
            loop = VirtualTimeLoop()
            key = DHTID.generate(source=f"key.{nodes}.{share}.{number}")
            counts.append(loop.run_until_complete(search(known, gone, rng.choice(alive), key, rtt, rng)))
            times.append(loop.time() / rtt)
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        quantiles = statistics.quantiles(times, n=20)
        rows.append(
            {
                "nodes": nodes,
                "stale": share,
                "requests": round(statistics.mean(counts), 2),
                "round_trips": round(statistics.mean(times), 2),
                "round_trips_p50": round(statistics.median(times), 2),
                "round_trips_p95": round(quantiles[-1], 2),
            }
        )
    return rows


async def measure_real(nodes: int, searches: int, seed: int) -> dict[str, float]:
    """Requests of a search in a swarm of real hosts on loopback: the same, with sockets and p2pd."""
    from blockswarm.clock import SystemClock
    from blockswarm.dht.host import Host
    from blockswarm.dht.identity import Identity

    rng = random.Random(seed)
    hosts: list[Host] = []
    counts, times = [], []
    loop = asyncio.get_running_loop()
    try:
        for _ in range(nodes):
            first = hosts[0].addresses() if hosts else []
            hosts.append(
                await Host.start(
                    Identity.ephemeral(),
                    listen=["/ip4/127.0.0.1/tcp/0"],
                    initial_peers=first,
                    clock=SystemClock(),
                    relay="off",
                    port_mapping=False,
                    startup_timeout=60.0,
                )
            )
        end = loop.time() + 120.0
        while min(len(host.node.protocol.routing_table.uid_to_peer_id) for host in hosts) < min(BUCKET_SIZE, nodes - 1):
            if loop.time() > end:
                break
            await asyncio.sleep(1.0)
        for number in range(searches):
            protocol = rng.choice(hosts).node.protocol
            node = next(host.node for host in hosts if host.node.protocol is protocol)
            whole, made = protocol.call_find, 0

            async def counted(peer: Any, keys: Any, whole: Any = whole) -> Any:
                nonlocal made
                made += 1
                return await whole(peer, keys)

            protocol.call_find = counted
            begin = loop.time()
            await asyncio.wait_for(node.get(f"key {seed} {number}", latest=True), 30.0)
            times.append(loop.time() - begin)
            protocol.call_find = whole
            counts.append(made)
        known = [len(host.node.protocol.routing_table.uid_to_peer_id) for host in hosts]
    finally:
        await asyncio.gather(*(host.stop() for host in hosts))
    return {
        "real_nodes": nodes,
        "known_to_a_node": statistics.mean(known),
        "requests": round(statistics.mean(counts), 2),
        "ms_p50": round(1000 * statistics.median(times), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[30, 100, 300, 1000])
    parser.add_argument("--stale", type=float, nargs="+", default=[0.0, 0.1, 0.3])
    parser.add_argument("--searches", type=int, default=100)
    parser.add_argument("--rtt", type=float, default=0.08, help="Median round trip, s.")
    parser.add_argument("--real", type=int, metavar="N", help="Start N real hosts on loopback instead.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if chosen.real:
        print(json.dumps(asyncio.run(measure_real(chosen.real, chosen.searches, chosen.seed))))
        return
    rows = [
        row for nodes in chosen.nodes for row in measure(nodes, chosen.stale, chosen.searches, chosen.rtt, chosen.seed)
    ]
    if chosen.json:
        print(json.dumps(rows))
        return
    print("nodes  stale  requests  round trips: mean  p50  p95")
    for row in rows:
        print(
            f"{row['nodes']:>5}  {row['stale']:>5.2f}  {row['requests']:>8.1f}  {row['round_trips']:>17.1f}"
            f"  {row['round_trips_p50']:.1f}  {row['round_trips_p95']:.1f}"
        )


if __name__ == "__main__":
    main()
