"""Several hosts on one machine: network namespaces, and lines between them with delay, rate, queue, loss and cuts.

    from benchmarks.hosts import Link, World

    with World.build(hosts=3, link=Link(delay_ms=40, rate_mbit=20, loss=0.01), seed=1) as world:
        server = world[0].popen(["python", "-m", "http.server", "--bind", world[0].address])
        world.set_link(0, 1, Link(delay_ms=5), back=Link(delay_ms=300))
        world.cut(0, 2)

Every host is a network namespace with a loopback of its own and one TUN device. A single forwarder process holds all
the TUN devices and carries packets from one to the other. There is no other way out: nothing reaches the outside, and
nothing outside is touched. Linux, root, ``/dev/net/tun``; `why_not` says what is missing.
"""

from benchmarks.hosts.errors import HostsError
from benchmarks.hosts.host import Host
from benchmarks.hosts.kernel import why_not
from benchmarks.hosts.link import FREE, Link
from benchmarks.hosts.network import Lateness, Traffic
from benchmarks.hosts.world import World

__all__ = ["FREE", "Host", "HostsError", "Lateness", "Link", "Traffic", "World", "why_not"]
