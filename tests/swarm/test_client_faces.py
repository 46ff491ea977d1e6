"""The same client in scripts, in a running event loop, from several threads, and at its end."""

from __future__ import annotations

from typing import Any


def test_the_asyncio_twin_has_the_same_names_and_answers(swarm: Any) -> None:
    found = swarm.client(
        """
        async def main():
            async with AsyncSwarmClient.connect(peers) as client:
                whole = await client.generate("The ", max_bytes=40, seed=5)
                pieces = [piece async for piece in client.stream("The ", max_bytes=40, seed=5)]
                table = await client.logprobs("some text")
                score = await client.score("some text")
                holders = await client.holders()
                both = await asyncio.gather(*(client.generate(text, max_bytes=20, seed=1) for text in "ab"))
            again = await AsyncSwarmClient.connect(peers)
            await again.close()
            return whole, pieces, table.shape, score.bytes, sorted(holders), both

        whole, pieces, shape, scored, blocks, both = asyncio.run(main())
        with SwarmClient.connect(peers) as client:
            blocking = client.generate("The ", max_bytes=40, seed=5)
            also = client.generate("a", max_bytes=20, seed=1)
        names = {name for name in dir(SwarmClient) if not name.startswith("_")}
        result(same=whole == "".join(pieces) == blocking, both=both[0] == also, shape=shape, scored=scored,
               blocks=blocks,
               differ=sorted(names ^ {name for name in dir(AsyncSwarmClient) if not name.startswith("_")}))
        """
    )
    assert found["same"] and found["both"]
    assert found["shape"] == [9, 256] and found["scored"] == 9 and found["blocks"] == [0, 1, 2]
    assert found["differ"] == []


def test_the_blocking_client_works_inside_a_running_loop_as_in_a_notebook(swarm: Any) -> None:
    found = swarm.client(
        """
        import uvloop

        async def cell():
            with SwarmClient.connect(peers) as client:
                options = dict(max_bytes=10, seed=5)
                return client.generate("The ", **options), "".join(client.stream("The ", **options))

        result(same=[len(set(asyncio.run(cell()))) == 1, len(set(uvloop.run(cell()))) == 1])
        """
    )
    assert found["same"] == [True, True]


def test_cancelling_an_asyncio_call_leaves_the_client_usable(swarm: Any) -> None:
    found = swarm.client(
        """
        async def main():
            async with AsyncSwarmClient.connect(peers) as client:
                text = await client.generate("The ", max_bytes=10, seed=5)
                tell(do="behave", holder="0a", how="slow"), tell(do="behave", holder="0b", how="slow")
                begun = time.monotonic()
                try:
                    await asyncio.wait_for(client.generate("The ", max_bytes=60), 0.5)
                except TimeoutError:
                    waited = time.monotonic() - begun
                tell(do="behave", holder="0a", how="well"), tell(do="behave", holder="0b", how="well")
                return waited, text == await client.generate("The ", max_bytes=10, seed=5)

        waited, same = asyncio.run(main())
        result(waited=waited, same=same)
        """
    )
    assert found["waited"] < 10
    assert found["same"]


def test_ctrl_c_during_a_call_is_a_keyboard_interrupt_and_the_client_stays_usable(swarm: Any) -> None:
    found = swarm.client(
        """
        import os, signal
        with SwarmClient.connect(peers) as client:
            text = client.generate("The ", max_bytes=10, seed=5)
            tell(do="behave", holder="0a", how="slow"), tell(do="behave", holder="0b", how="slow")
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            begun = time.monotonic()
            try:
                client.generate("The ", max_bytes=60)
            except KeyboardInterrupt:
                waited = time.monotonic() - begun
            tell(do="behave", holder="0a", how="well"), tell(do="behave", holder="0b", how="well")
            result(waited=waited, same=client.generate("The ", max_bytes=10, seed=5) == text)
        """
    )
    assert found["waited"] < 10, "writing sixty bytes would take a minute"
    assert found["same"]


def test_close_is_quick_and_leaves_no_thread_and_no_socket(swarm: Any) -> None:
    found = swarm.client(
        """
        import psutil
        client = SwarmClient.connect(peers)
        client.generate("The ", max_bytes=5)
        for name in info["holders"]:
            tell(do="freeze", holder=name)
        begun = time.monotonic()
        client.close()
        client.close()
        seconds = time.monotonic() - begun
        try:
            client.generate("x")
        except ClientError as error:
            said = str(error)
        process = psutil.Process()
        result(seconds=seconds, said=said, threads=threading.active_count(),
               sockets=[str(held) for held in process.net_connections() if held.status != "NONE"])
        """
    )
    assert found["seconds"] < 2.0
    assert "closed" in found["said"]
    assert found["threads"] == 1 and found["sockets"] == []


def test_a_client_forgotten_without_close_does_not_keep_the_process(swarm: Any) -> None:
    found = swarm.client(
        """
        client = SwarmClient.connect(peers)
        stream = client.stream("The ", max_bytes=60)
        result(piece=next(stream) != "")
        """
    )
    assert found["piece"]


def test_neither_torch_nor_hivemind_is_loaded_and_memory_stays_small(swarm: Any) -> None:
    found = swarm.client(
        """
        import re
        from pathlib import Path
        with SwarmClient.connect(peers) as client:
            client.generate("The ", max_bytes=20)
        most = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
        result(heavy=[name for name in ("torch", "hivemind", "uvloop") if name in sys.modules],
               megabytes=int(most[1]) / 1024)
        """
    )
    assert found["heavy"] == []
    assert found["megabytes"] < 150
