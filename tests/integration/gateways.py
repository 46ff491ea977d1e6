"""Gateways of a running swarm, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import openai

from blockswarm.peer.local import LocalSwarm
from tests.integration.small import PATIENCE

KEY = "a-secret"


@dataclass
class RunningGateway:
    """A gateway that is ready."""

    process: subprocess.Popen[str]
    url: str
    run_id: str

    def client(self, key: str = KEY) -> openai.OpenAI:
        """OpenAI's own client of it."""
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=PATIENCE)


@contextmanager
def gateway_of(swarm: LocalSwarm, *options: str) -> Iterator[RunningGateway]:
    """A gateway at a free port that wants ``KEY``; whoever uses it may end it earlier."""
    process = subprocess.Popen(
        [sys.executable, "-m", "blockswarm", "gateway", "--port", "0", *options],
        cwd=swarm.folder,
        env={**os.environ, **swarm.environment, "BLOCKSWARM_API_KEY": KEY},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        words = process.stdout.readline().split()
        assert words[:1] == ["ready:"], f"the gateway ended (exit code {process.wait(PATIENCE)})"
        yield RunningGateway(process, words[1], words[3])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
