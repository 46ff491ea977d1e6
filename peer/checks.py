"""What can be found out about a volunteer's options before anybody is contacted: mistakes are told at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blockswarm.model.corpus import Corpus, read_text, split
from blockswarm.model.errors import ModelError
from blockswarm.model.ngram import NgramModel
from blockswarm.naming import option
from blockswarm.peer.config import ConfigError, PeerConfig
from blockswarm.peer.joining import check_block, check_memory, counts_only
from blockswarm.swarm.counts.files import CountsError, open_counts
from blockswarm.swarm.manifest import COUNTS, Manifest


@dataclass
class Inputs:
    """What the options name, read."""

    manifest: Manifest | None
    """The manifest of the ``manifest`` option; else it comes from the swarm."""
    spec: str | None
    """Name of the text, if it is known already."""
    text: bytes | Corpus | None
    """The whole text if its name is known already, split if the manifest is; None once it has been taken."""

    def take_corpus(self, manifest: Manifest) -> Corpus:
        """The text to train on, split; it is read now if only the swarm's manifest names it.

        It may be a gigabyte, so it is handed over: nothing is kept here. Raises `CorpusError`.
        """
        text, self.text = self.text, None
        if isinstance(text, Corpus):
            return text
        spec = self.spec or manifest.data.name
        return split(read_text(spec) if text is None else text, spec, context=manifest.model.context)


def read_inputs(config: PeerConfig) -> Inputs:
    """Read the files that the options name and see whether this machine and these files can do what is asked for.

    A device by name costs the import of torch, a large text the time to read it: call it off the event loop.

    Raises
    ------
    UsageError
        Naming the option: a device that is not there, a manifest or a text that cannot be used, or that contradict
        other options.
    JoinError
        When a block of the manifest does not fit into free memory.
    """
    if config.device not in ("auto", "cpu"):
        from blockswarm.model.learner import pick_device  # torch: seconds

        pick_device(config.device)
    manifest = None if config.manifest is None else Manifest.load(config.manifest)
    if manifest is not None:
        if config.run_id not in (None, manifest.run_id):
            run = option("run_id", flag="--run")
            raise ConfigError(f"{config.manifest} is of {manifest.run_id}, not of {run} {config.run_id}")
        check_block(config.block, manifest)
        check_memory(manifest, counts_only=counts_only(config.block, manifest))
    if config.counts is not None:
        _check_counts(config.counts, manifest)
    if config.block == COUNTS:
        return Inputs(manifest, None, None)  # a text is read only if nobody has the counts
    spec = config.data or (manifest.data.name if manifest is not None else None)
    if spec is None:
        return Inputs(manifest, None, None)
    text = read_text(spec)
    # Splitting tells whether it is long enough.
    known = text if manifest is None else split(text, spec, context=manifest.model.context)
    return Inputs(manifest, spec, known)


def _check_counts(path: Path, manifest: Manifest | None) -> None:
    """Raise `ConfigError` for a file that cannot be the n-gram counts of a run, or is not those of ``manifest``."""
    try:
        if manifest is not None and manifest.counts is not None:
            open_counts(path, manifest.counts)
        else:
            NgramModel.open(path)
    except (CountsError, ModelError) as error:
        raise ConfigError(f"{option('counts')} {error}") from error
