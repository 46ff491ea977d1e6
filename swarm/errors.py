"""What can go wrong between a swarm and those who look at it from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from blockswarm.errors import BlockswarmError, UsageError


class SwarmError(BlockswarmError):
    """Root of the errors of ``blockswarm.swarm``."""


class ManifestError(SwarmError):
    """A manifest that cannot be used.

    Attributes
    ----------
    problems : tuple of str
        Every problem found, each as ``field: reason``; the message is all of them in one line.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class GivenManifestError(ManifestError, UsageError):
    """A manifest that the caller named or asked for, not one that a peer sent, and that cannot be used."""


@contextmanager
def given_manifest() -> Iterator[None]:
    """What is wrong with a manifest that the caller named or asked for is the caller's to mend."""
    try:
        yield
    except ManifestError as error:
        raise GivenManifestError(str(error), error.problems) from error


class ModelFolderError(SwarmError):
    """A model folder that cannot be read or written; names the file and the reason."""


class GivenFolderError(ModelFolderError, UsageError):
    """It is the folder that was named which cannot be used: missing, damaged, or holding something else."""


class MessageError(SwarmError):
    """A message body that breaks its contract.

    Attributes
    ----------
    field : str
        The key at fault.
    reason : str
        What is wrong with it, with the limit that was broken. Never echoes the sender's bytes.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class ClientError(SwarmError):
    """The client could not do what was asked."""


class ArgumentError(ClientError, UsageError):
    """An argument has a value that cannot work; the message names it."""


class ConnectError(ClientError):
    """No peer of the swarm could be reached, or none knows the run that was asked for."""


class NoHolderError(ClientError):
    """Nobody serves a block.

    Attributes
    ----------
    block : int
        The block without a holder.
    """

    def __init__(self, block: int, message: str | None = None) -> None:
        super().__init__(message or f"no live holder of block {block}: wait for a volunteer to serve it")
        self.block = block


class DeadlineError(ClientError):
    """The answer did not arrive in the time that was allowed."""


class UntrustedAnswerError(ClientError):
    """A holder's answer broke a rule every honest answer keeps (shape, finiteness, normalisation, digest)."""
