"""Scenarios and regimes as data: strict frozen parts of TOML files, and one line for whatever is wrong in them."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from blockswarm.errors import UsageError
from blockswarm.swarm.errors import SwarmError
from blockswarm.swarm.manifest_fields import describe

MAX_SCENARIO_BYTES = 1 << 20


class ScenarioError(SwarmError, UsageError):
    """A scenario that cannot be simulated; the message names the file and every field at fault.

    Attributes
    ----------
    problems : tuple of str
        Each as ``field: reason``.
    """

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}: {'; '.join(problems)}")
        self.problems = tuple(problems)


class Part(BaseModel):
    """A frozen, strict part of a scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


AsTuple = BeforeValidator(_frozen)
"""Lets a list of a TOML file stand for a tuple."""

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=1e9)]

P = TypeVar("P", bound=Part)


def read_part(kind: type[P], mapping: dict[str, Any], *, source: str) -> P:
    """Check plain data and freeze it; raises `ScenarioError` naming ``source`` and every field at fault."""
    try:
        return kind.model_validate(mapping)
    except ValidationError as error:
        raise ScenarioError(source, describe(error, kind)) from error


def part_from_file(kind: type[P], path: Path | Traversable, *, source: str, names: Collection[str] = ()) -> P:
    """A part of a TOML file, named after the file where it has no name of its own.

    Parameters
    ----------
    kind : type
        What the file holds; has a field ``name``.
    path : Path
        The file.
    source : str
        What it is called in errors.
    names : collection of str
        What else could have been asked for, where the file cannot be read.

    Raises
    ------
    ScenarioError
        Naming the file and every field at fault.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SCENARIO_BYTES + 1)
    except OSError as error:
        instead = f"; give a TOML file, or one of {', '.join(names)}" if names else ""
        raise ScenarioError(source, [f"{error.strerror}{instead}"]) from error
    if len(raw) > MAX_SCENARIO_BYTES:
        raise ScenarioError(source, [f"larger than {MAX_SCENARIO_BYTES} bytes, which no such file is"])
    try:
        mapping: dict[str, Any] = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise ScenarioError(source, [f"not valid TOML: {error}"]) from error
    mapping.setdefault("name", Path(path.name).stem[:64])
    return read_part(kind, mapping, source=source)
