"""A world described in a file: its lines, what runs on its hosts, and what happens to it when.

    hosts = 3
    seconds = 30                      # the end; without it, when every process has ended
    seed = 1

    [link]                            # any two hosts, each way
    delay_ms = 40
    rate_mbit = 20
    loss = 0.01

    [[run]]
    host = 0
    command = ["python3", "-m", "http.server", "--bind", "$HOST_0", "8000"]

    [[event]]                         # at 0: how the world begins
    at = 0
    host = 2
    uplink = {rate_mbit = 5}

    [[event]]
    at = 10
    cut = [0, 1]

    [[event]]
    at = 15
    heal = "all"

``$HOST_0`` in a command is the address of host 0, ``$HOST6_0`` its IPv6 address; processes find them in their
environment too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import string
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from benchmarks.hosts.errors import HostsError
from benchmarks.hosts.link import FREE, Link
from benchmarks.hosts.world import MTU, World

LOOK_SECONDS = 0.02
FAREWELL_SECONDS = 6.0
"""What processes get to leave after SIGTERM at the end of a scenario."""

_ACTIONS = ("cut", "cut_off", "heal", "link", "uplink", "downlink")


def _to_link(value: Any) -> Link:
    if isinstance(value, Link):
        return value
    try:
        return Link(**value)
    except (TypeError, HostsError) as error:
        raise ValueError(str(error).removeprefix("Link.__init__() ")) from None


LinkField = Annotated[Link, BeforeValidator(_to_link)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Run(_Strict):
    """A program on a host."""

    host: int
    command: list[str] = Field(min_length=1)
    at: Seconds = 0.0


class Event(_Strict):
    """One change of the world: a cut, a healing, or other lines."""

    at: Seconds
    cut: tuple[int, int] | None = None
    cut_off: int | None = None
    heal: Literal["all"] | int | tuple[int, int] | None = None
    between: tuple[int, int] | None = None
    """For ``link``, and ``back`` for the other direction (default: the same)."""
    link: LinkField | None = None
    back: LinkField | None = None
    host: int | None = None
    """For ``uplink`` or ``downlink``."""
    uplink: LinkField | None = None
    downlink: LinkField | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> Event:
        given = [name for name in _ACTIONS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"an event is one of {', '.join(_ACTIONS)}; this is {', '.join(given) or 'none'}")
        if (self.between is None) != (self.link is None) or (self.back is not None and self.link is None):
            raise ValueError("between, link and maybe back belong together")
        if (self.host is None) == (self.uplink is not None or self.downlink is not None):
            raise ValueError("host belongs to uplink or downlink")
        return self

    def happen(self, world: World) -> None:
        """Change the world."""
        if self.cut is not None:
            world.cut(*self.cut)
        elif self.cut_off is not None:
            world.cut_off(self.cut_off)
        elif self.link is not None and self.between is not None:
            world.set_link(*self.between, self.link, back=self.back)
        elif self.uplink is not None and self.host is not None:
            world.set_uplink(self.host, self.uplink)
        elif self.downlink is not None and self.host is not None:
            world.set_downlink(self.host, self.downlink)
        elif self.heal == "all":
            world.heal()
        elif isinstance(self.heal, tuple):
            world.heal(*self.heal)
        elif isinstance(self.heal, int):
            world.heal(self.heal)

    def __str__(self) -> str:
        given = {name: getattr(self, name) for name in type(self).model_fields if name != "at"}
        return "; ".join(f"{name} {value}" for name, value in given.items() if value is not None)


class Scenario(_Strict):
    """A world and its story."""

    hosts: int
    seconds: Seconds | None = None
    seed: int = 0
    mtu: int = MTU
    congestion: str | None = None
    link: LinkField = FREE
    uplink: LinkField = FREE
    downlink: LinkField = FREE
    run: list[Run] = Field(default_factory=list)
    event: list[Event] = Field(default_factory=list)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Scenario:
        """Check a story that is told as a file would tell it.

        Raises
        ------
        HostsError
            With every field that is wrong.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            wrong = [": ".join(filter(None, (".".join(map(str, e["loc"])), e["msg"]))) for e in error.errors()]
            raise HostsError("; ".join(wrong)) from None

    @classmethod
    def load(cls, path: Path) -> Scenario:
        """Read and check a file.

        Raises
        ------
        HostsError
            With the file and every field that is wrong.
        """
        try:
            return cls.of(tomllib.loads(path.read_text()))
        except OSError as error:
            raise HostsError(f"{path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, HostsError) as error:
            raise HostsError(f"{path}: {error}") from None

    @model_validator(mode="after")
    def _hosts_exist(self) -> Scenario:
        named = [run.host for run in self.run]
        for event in self.event:
            for each in (event.cut, event.cut_off, event.heal, event.between, event.host):
                named += [each] if isinstance(each, int) else each if isinstance(each, tuple) else []
        if wrong := sorted({host for host in named if not 0 <= host < self.hosts}):
            raise ValueError(f"there is no host {wrong[0]}: hosts are numbered from 0 to {self.hosts - 1}")
        return self

    @model_validator(mode="after")
    def _nothing_comes_after_the_end(self) -> Scenario:
        last = max([0.0, *(event.at for event in self.event), *(run.at for run in self.run)])
        if self.seconds is not None and last > self.seconds:
            raise ValueError(f"something happens at {last:g}, after the end: seconds is {self.seconds:g}")
        return self


def play(scenario: Scenario, say: Callable[[str], None]) -> dict[str, Any]:
    """Let a scenario happen.

    Parameters
    ----------
    scenario : Scenario
        What is to happen.
    say : callable
        Gets a line for everything that happens.

    Returns
    -------
    dict
        ``seconds``; ``processes`` (``host``, ``command``, ``code``: the exit code, None if it was ended by us,
        ``ended_at``); ``traffic`` (``from``, ``to`` and the fields of `Traffic`); ``lateness`` (those of `Lateness`).
    """
    with World.build(
        scenario.hosts,
        link=scenario.link,
        uplink=scenario.uplink,
        downlink=scenario.downlink,
        seed=scenario.seed,
        mtu=scenario.mtu,
        congestion=scenario.congestion,
    ) as world:
        stage = _Stage(world, say)
        story: list[Run | Event] = sorted([*scenario.event, *scenario.run], key=lambda each: each.at)
        for each in story:
            stage.wait(each.at)
            stage.start(each) if isinstance(each, Run) else stage.change(each)
        stage.wait(scenario.seconds)
        stage.finish()
        return stage.report()


class _Stage:
    """A world with a clock and the processes started in it."""

    def __init__(self, world: World, say: Callable[[str], None]) -> None:
        self._world = world
        self._say = say
        self._begin = time.monotonic()
        self._addresses = {f"HOST_{host.number}": host.address for host in world}
        self._addresses |= {f"HOST6_{host.number}": host.address6 for host in world if host.address6 is not None}
        self._rows: list[dict[str, Any]] = []
        self._running: list[tuple[subprocess.Popen[Any], dict[str, Any]]] = []
        for host in world:
            self._tell(f"host {host.number} is {host.address}{f' and {host.address6}' if host.address6 else ''}")

    def start(self, run: Run) -> None:
        command = [string.Template(word).safe_substitute(self._addresses) for word in run.command]
        self._tell(f"host {run.host} runs {' '.join(command)}")
        row = {"host": run.host, "command": command, "code": None, "ended_at": None}
        try:
            process = self._world[run.host].popen(command, env={**os.environ, **self._addresses})
        except OSError as error:
            raise HostsError(f"host {run.host}: {error}") from None
        self._rows.append(row)
        self._running.append((process, row))

    def change(self, event: Event) -> None:
        event.happen(self._world)
        self._tell(str(event))

    def wait(self, until: float | None) -> None:
        """Wait for a moment of the scenario; None: for the end of all processes."""
        while True:
            self._look()
            if until is None and not self._running:
                return
            if until is not None and self._now() >= until:
                return
            time.sleep(LOOK_SECONDS)

    def finish(self) -> None:
        """End what still runs."""
        self._look()
        for process, row in self._running:
            self._tell(f"host {row['host']}: {row['command'][0]} is ended")
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + FAREWELL_SECONDS
        for process, row in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the world kills it when it ends
                process.wait(max(0.0, deadline - time.monotonic()))
            row["ended_at"] = self._now()

    def report(self) -> dict[str, Any]:
        traffic = [
            {"from": source, "to": target, **dataclasses.asdict(counts)}
            for (source, target), counts in self._world.traffic().items()
        ]
        lateness = dataclasses.asdict(self._world.lateness())
        return {"seconds": self._now(), "processes": self._rows, "traffic": traffic, "lateness": lateness}

    def _look(self) -> None:
        for process, row in list(self._running):
            if (code := process.poll()) is not None:
                row["code"], row["ended_at"] = code, self._now()
                self._running.remove((process, row))
                self._tell(f"host {row['host']}: {row['command'][0]} ended with exit code {code}")

    def _now(self) -> float:
        return round(time.monotonic() - self._begin, 3)

    def _tell(self, what: str) -> None:
        self._say(f"{self._now():8.3f} s  {what}")
