"""What ``blockswarm gateway`` does with its options, up to the point where the network begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockswarm.cli import main as front
from blockswarm.cli.gateway import command
from blockswarm.swarm.gateway import server
from blockswarm.swarm.gateway.limits import Limits
from blockswarm.swarm.gateway.server import GatewayConfig

ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[GatewayConfig]:
    """Configs that gateways were started with, in an empty folder, instead of starting them."""
    configs: list[GatewayConfig] = []

    async def record(config: GatewayConfig, stop: asyncio.Event, tell: Callable[[str], None]) -> int:
        configs.append(config)
        tell("ready: for nothing")
        return 0

    def run(program: Callable[[asyncio.Event], Any]) -> int:
        async def body() -> int:
            return int(await program(asyncio.Event()))

        return asyncio.run(body())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "run_gateway", record)
    monkeypatch.setattr("blockswarm.cli.gateway.run_until_stopped", run)
    monkeypatch.delenv("BLOCKSWARM_API_KEY", raising=False)
    return configs


def test_it_listens_on_this_machine_only_unless_told_otherwise(
    started: list[GatewayConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run(["gateway", "--peer", ADDRESS]) == 0
    assert front.run(["gateway", "--peer", ADDRESS, "--host", "0.0.0.0", "--port", "0", "--run", "demo-1"]) == 0
    assert [(config.host, config.port, config.run_id) for config in started] == [
        ("127.0.0.1", 8000, None),
        ("0.0.0.0", 0, "demo-1"),
    ]
    assert started[0].peers == (ADDRESS,) and started[0].key is None and started[0].cache is None
    assert capsys.readouterr().out.splitlines() == ["ready: for nothing"] * 2


def test_defaults_of_the_command_are_those_of_python(started: list[GatewayConfig]) -> None:
    assert front.run(["gateway", "--peer", ADDRESS]) == 0
    assert started[0].limits == Limits()
    options = ["--concurrency", "2", "--queue", "0", "--timeout", "5", "--max-tokens", "10", "--max-prompt-bytes", "20"]
    assert front.run(["gateway", "--peer", ADDRESS, *options, "--max-choices", "3", "--max-body-bytes", "999"]) == 0
    assert started[1].limits == Limits(
        concurrency=2, queue=0, timeout=5.0, max_tokens=10, max_prompt_bytes=20, max_choices=3, max_body_bytes=999
    )


def test_a_key_is_given_in_the_environment_on_the_command_line_or_in_a_file(
    started: list[GatewayConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("key").write_text("of-the-file\n")
    monkeypatch.setenv("BLOCKSWARM_API_KEY", "of-the-environment")
    for options in ([], ["--api-key", "of-the-line"], ["--api-key-file", "key"]):
        assert front.run(["gateway", "--peer", ADDRESS, *options]) == 0
    for config, expected in zip(started, ("of-the-environment", "of-the-line", "of-the-file"), strict=True):
        assert config.key is not None and config.key.opens(f"Bearer {expected}")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--concurrency", "0"], "--concurrency"),
        (["--timeout", "nan"], "--timeout"),
        (["--max-tokens", "x"], "--max-tokens"),
        (["--port", "70000"], "--port"),
        (["--api-key", ""], "--api-key"),
        (["--api-key-file", "missing"], "--api-key-file missing"),
        (["--peers-file", "missing"], "missing"),
        (["--peer", "nonsense"], "--peer"),
    ],
)
def test_what_cannot_work_is_wrong_usage_and_one_line(
    options: list[str], named: str, started: list[GatewayConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    peers = [] if options[0].startswith("--peer") else ["--peer", ADDRESS]
    assert front.run(["gateway", *peers, *options]) == 2
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1
    assert started == []


def test_a_drafter_that_is_none_is_refused_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    assert front.run(["gateway", "--peer", ADDRESS, "--port", "0", "--draft", "nobody"]) == 2
    assert "--draft 'nobody'" in capsys.readouterr().err


def test_the_help_says_what_is_served() -> None:
    assert command.help is not None and "/v1/completions" in command.help
