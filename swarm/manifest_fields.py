"""The sections of a manifest: types, units, ranges, and how a broken one is reported.

Pydantic stands at the border only: it reads foreign mappings strictly (no coercion but int → float, no unknown keys)
and leaves frozen values behind. Every key is required. A default that moved with a software version would move the
manifest's digest, and with it the identity of the swarm; defaults belong to ``create_manifest``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from blockswarm.dht.frames import PROTOCOL_VERSION as PROTOCOL_VERSION
from blockswarm.model.errors import ModelError
from blockswarm.model.ngram_counts import MAX_ORDER
from blockswarm.naming import option
from blockswarm.swarm.codec import FOR_RUNS, Compression
from blockswarm.swarm.policy.phases import PhaseLengths
from blockswarm.swarm.policy.robust import Robust

MAX_MANIFEST_BYTES = 64 * 1024
# Ranges of single fields belong to the model's own module; this bounds their product, before a layout is allocated.
MAX_BLOCK_PARAMETERS = 4 * 10**9

MAX_BLOCKS = 256

MOST_TOLD = 20
"""Problems that are told of one section: a stranger's manifest may have tens of thousands."""

MAX_COUNTS_BYTES = 1 << 30
"""Longest file of n-gram counts that a manifest may name: volunteers and clients keep it on their disks."""


def _digest(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("must be 64 lower-case hex digits (a SHA-256)")
    return text


def _slug(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", text):
        raise ValueError("must be 1 to 32 of a-z, 0-9 and '-', not starting or ending with '-'")
    return text


def _printable(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be printable, without blanks around it")
    return text


def _elastic_or_count(value: int | str) -> int | str:
    if isinstance(value, str):
        if value != "elastic":
            raise ValueError('must be "elastic" or a whole number of steps')
    elif not 1 <= value <= 1_000_000:
        raise ValueError("must be between 1 and 1000000 steps")
    return value


def _frozen_list(value: object) -> object:
    if isinstance(value, list) and len(value) > MAX_BLOCKS:
        raise ValueError(f"must have 1 to {MAX_BLOCKS} items, has {len(value)}")  # before each of them is looked at
    return tuple(value) if isinstance(value, list) else value


Digest = Annotated[str, AfterValidator(_digest)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Section(BaseModel):
    """A frozen, strict part of a manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Data(Section):
    """What the swarm learns from."""

    name: Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_printable)] = Field(
        description='corpus: "docs", "hf:<dataset>[:config]", or a name the volunteers agree on and pass with --data'
    )
    heldout_digest: Annotated[str, AfterValidator(lambda text: text and _digest(text))] = Field(
        description='SHA-256 of the held-out bytes where everyone can have the same ones; "" where they may differ'
    )


class Rounds(Section):
    """The rhythm: round r closes at genesis_time + r * seconds; the phases fill its end, in this order."""

    seconds: Seconds = Field(description="length of a round, s")
    meet: Seconds = Field(description="replicas find each other and one list is signed, s")
    scatter: Seconds = Field(description="members send each part of their update to its reducer, s")
    decide: Seconds = Field(description="the leader signs who is accepted, s")
    gather: Seconds = Field(description="reducers send the averaged parts to all, s")
    commit: Seconds = Field(description="votes on the new digest, s")
    tolerance: Annotated[float, Field(gt=0, le=60)] = Field(
        description="largest clock error of a peer that may train, s"
    )
    local_steps: Annotated[int | str, AfterValidator(_elastic_or_count)] = Field(
        description='"elastic" (as many as fit before the deadline) or a fixed number of optimizer steps'
    )
    late: Literal["carry", "drop"] = Field(description='work that missed its round: "carry" into the next or "drop"')
    carry_discount: Annotated[float, Field(ge=0, le=1)] = Field(description="factor on carried work, 0 to 1")
    group_size: Annotated[int, Field(ge=2, le=256)] = Field(description="most replicas averaged in one group")

    @property
    def lengths(self) -> PhaseLengths:
        """The five phases as the round policies take them."""
        return PhaseLengths(
            meet=self.meet, scatter=self.scatter, decide=self.decide, gather=self.gather, commit=self.commit
        )


def _same_everywhere(compression: object) -> object:
    """Before the type is looked at, which has codecs for experiments too: one list is told, of what may be chosen."""
    if compression not in FOR_RUNS:
        names = ", ".join(map(repr, FOR_RUNS))
        raise ValueError(f"must be one of {names}: others do not decode to the same bits everywhere")
    return compression


class Averaging(Section):
    """How accepted updates become one."""

    compression: Annotated[Compression, BeforeValidator(_same_everywhere)] = Field(
        description='encoding of updates on the wire: "none" (fp32), "fp16", "int8" or "int4"'
    )
    max_weight_ratio: Annotated[float, Field(ge=1, le=1000)] = Field(
        description="an update weighs at most this many times the median weight"
    )
    max_norm_ratio: Annotated[float, Field(gt=1, le=1e6)] = Field(
        description="an update longer than this many times the median norm is rejected"
    )
    robust: Robust = Field(
        description='the mean: "none" (weighted), "clip" (too long ones shortened), from 4 on "trimmed" or "centered"'
    )
    clip_ratio: Annotated[float, Field(ge=1, le=1000)] = Field(
        description="an update longer than this many times the median norm is shortened to that"
    )
    outer: Literal["none", "nesterov"] = Field(
        description='what a commit makes of the mean: "none" adds it, "nesterov" steps along it with a momentum'
    )
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = Field(description="share of the momentum kept in a commit")
    outer_rate: Annotated[float, Field(gt=0, le=10)] = Field(description="length of an outer step; 1 = the mean's own")


class Limits(Section):
    """Bounds on what the swarm's directory may hold."""

    directory_shards: Annotated[int, Field(ge=1, le=256)] = Field(description="directory keys per block")
    max_replicas: Annotated[int, Field(ge=1, le=65_536)] = Field(description="most replicas listed per block")


class Genesis(Section):
    """Digests of the states of round 0; every peer computes them from the seed and compares."""

    embedding: Digest = Field(description="state digest of the shared embedding")
    blocks: Annotated[tuple[Digest, ...], BeforeValidator(_frozen_list), Field(min_length=1, max_length=MAX_BLOCKS)] = (
        Field(description="state digest of each block, block 0 first")
    )


class Counts(Section):
    """The n-gram counts that are mixed into the blocks' predictions."""

    digest: Digest = Field(description="digest of the file: SHA-256 over the SHA-256 of each 1 MiB")
    bytes: Annotated[int, Field(ge=64, le=MAX_COUNTS_BYTES, multiple_of=8)] = Field(description="length of the file")
    order: Annotated[int, Field(ge=1, le=MAX_ORDER)] = Field(description="bytes of context its rows look at, at most")
    weight: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="share of its log-probabilities in the mixture; the blocks' mean has the rest"
    )


SECTIONS = ("data", "rounds", "averaging", "limits", "genesis", "counts")
"""Those of a document that are checked here, in their order."""


class Document(Section):
    """A manifest as it stands in a file; model and recipe are checked by their own module."""

    name: Annotated[str, AfterValidator(_slug)] = Field(description="name of the run: a-z, 0-9 and '-', at most 32")
    protocol: Annotated[int, Field(ge=1, le=65_535)] = Field(description="version of the protocol all peers speak")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(description="seed of the initial parameters")
    genesis_time: Annotated[float, Field(ge=0, le=2**33)] = Field(description="start of round 1, Unix seconds UTC")
    model: dict[str, Any]
    recipe: dict[str, Any]
    data: Data
    rounds: Rounds
    averaging: Averaging
    limits: Limits
    genesis: Genesis
    counts: Counts | None = None


def show(value: object) -> str:
    """A short, printable form of a foreign value for an error line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists without end
        return f"an absurd {type(value).__name__}"
    return text if len(text) <= 48 else text[:45] + "..."


def field_name(*parts: object) -> str:
    """Where a value stands, for an error line; keys that strangers made up may be anything."""
    path = ".".join(map(str, parts))
    return path if path.isprintable() and len(path) <= 80 else show(path)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The reason line for a key nobody knows, with the nearest known one."""
    near = difflib.get_close_matches(str(key), list(known), n=1)
    return "unknown key" + (f" (did you mean {near[0]!r}?)" if near else "; remove it")


def describe(error: ValidationError, document: type[BaseModel] = Document) -> list[str]:
    """Each of pydantic's complaints about a ``document`` as one ``field: reason``."""
    problems = []
    for item in error.errors(include_url=False)[:MOST_TOLD]:
        path = field_name(*(part for part in item["loc"] if part not in ("int", "str"))) or "(top level)"
        if item["type"] == "extra_forbidden":
            reason = unknown_key(str(item["loc"][-1]), _known_keys(item["loc"][:-1], document))
        elif item["type"] == "missing":
            reason = "missing"
        else:
            reason = f"{_plain_words(item['msg'])}, is {show(item['input'])}"
        line = f"{path}: {reason}"
        if line not in problems:
            problems.append(line)
    return problems


_ARGUMENTS = {
    "name": "name",
    "seed": "seed",
    "recipe.train_samples": "train_samples",
    "data.name": "data",
    "rounds.seconds": "round_seconds",
}


def as_argument(problem: str) -> str:
    """A problem of a new manifest, its field called as whoever makes the manifest gives it."""
    field = re.split("[: ]", problem, maxsplit=1)[0]
    section, _, name = field.rpartition(".")
    argument = name if section == "averaging" else _ARGUMENTS.get(field)
    return option(argument) + problem.removeprefix(field) if argument else problem


def _plain_words(message: str) -> str:
    """Pydantic's sentence in the words of the other errors."""
    message = message.removeprefix("Value error, ").replace("Input should be", "must be", 1)
    message = message.replace("String should have", "must have", 1)
    for theirs, ours in (("integer", "whole number"), ("string", "text"), ("dictionary", "section")):
        message = message.replace(f"a valid {theirs}", f"a {ours}" if ours != "text" else ours)
    return message.replace("a valid", "a", 1)


def _known_keys(path: tuple[int | str, ...], document: type[BaseModel]) -> list[str]:
    section: Any = document
    for part in path:
        # A number is a place in a list of sections, whose type holds theirs.
        section = typing.get_args(section)[0] if isinstance(part, int) else section_type(section, part)
    return list(section.model_fields)


def section_type(document: type[BaseModel], name: str) -> Any:
    """The type of the field ``name``; of one that may be absent, what it is when it is there."""
    annotation = document.model_fields[name].annotation
    if type(None) not in typing.get_args(annotation):
        return annotation
    return next(kind for kind in typing.get_args(annotation) if kind is not type(None))


def read_dataclass(kind: type[Any], section: str, raw: object) -> tuple[Any, list[str]]:
    """``ModelConfig`` or ``Recipe`` from a foreign mapping, or ``None`` and the problems found."""
    if not isinstance(raw, dict):
        return None, []  # already reported as missing or ill-typed
    mapping, problems = _canonical_mapping(kind, section, raw)
    if problems:
        return None, problems
    try:
        return kind.from_mapping(mapping), []
    except ModelError as error:
        return None, [str(error).replace(f"{kind.__name__}.", f"{section}.", 1)]


def _canonical_mapping(kind: type[Any], section: str, raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Check a foreign mapping against the fields of a dataclass before its own module sees it.

    Missing and unknown keys, wrong types and non-finite numbers are reported, all at once; ints in float fields become
    floats and lists in tuple fields become tuples, so that equal manifests have equal bytes.

    Parameters
    ----------
    kind : dataclass type
        ``ModelConfig`` or ``Recipe``.
    section : str
        Name of the section, for the reasons.
    raw : mapping
        What the file says.

    Returns
    -------
    mapping : dict
        The known keys, canonical.
    problems : list of str
        Each as ``section.field: reason``.
    """
    hints = typing.get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]
    unknown = [key for key in raw if key not in known]
    problems = [f"{field_name(section, key)}: {unknown_key(key, known)}" for key in unknown[:MOST_TOLD]]
    problems += [f"{section}.{key}: missing" for key in known if key not in raw]
    mapping: dict[str, Any] = {}
    for key in known:
        if key not in raw:
            continue
        value, problem = _canonical_value(raw[key], hints[key])
        if problem is None:
            mapping[key] = value
        else:
            problems.append(f"{section}.{key}: {problem}")
    return mapping, problems


def _canonical_value(value: Any, hint: Any) -> tuple[Any, str | None]:
    allowed = typing.get_args(hint) if typing.get_origin(hint) not in (tuple, Literal) else ()
    kinds = allowed or (hint,)
    if isinstance(value, bool):
        return value, None if bool in kinds else f"must not be a boolean, is {show(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return value, "must be a number of at most 64 bits"
    if isinstance(value, int) and float in kinds and int not in kinds:
        value = float(value) if abs(value) < 2**53 else value
    if isinstance(value, float):
        if not math.isfinite(value):
            return value, f"must be a finite number, is {value}"
        if float not in kinds:
            return value, f"must be {_name(hint)}, is {show(value)}"
        return value + 0.0, None  # -0.0 and 0.0 are one number and must be one encoding
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        if not isinstance(value, list | tuple) or (Ellipsis not in inner and len(value) != len(inner)):
            return value, f"must be a list of {len(inner)} numbers, is {show(value)}"
        parts = [_canonical_value(part, inner[0]) for part in value]
        return tuple(part for part, _ in parts), next((problem for _, problem in parts if problem), None)
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            return value, f"must be one of {', '.join(map(repr, typing.get_args(hint)))}, is {show(value)}"
        return value, None
    if not isinstance(value, tuple(kind for kind in kinds if isinstance(kind, type))):
        return value, f"must be {_name(hint)}, is {show(value)}"
    return value, None


def _name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, str(hint))
