"""A trained stack as a model folder, which ``generate --checkpoint`` and ``evaluate --checkpoint`` read."""

from __future__ import annotations

from pathlib import Path

from blockswarm.lab.errors import LabError
from blockswarm.lab.plan import Plan
from blockswarm.lab.training import Trained
from blockswarm.model.layout import EMBEDDING
from blockswarm.swarm.manifest import create_manifest
from blockswarm.swarm.model_card import ModelSummary
from blockswarm.swarm.model_folder import SavedState
from blockswarm.swarm.model_writer import write_model_folder

ROUND_SECONDS = 60.0
"""Of the manifest's rounds, which nobody trains in; long enough for the updates of any size."""


def fits(plan: Plan) -> bool:
    """Whether a plan's outcome is a model as swarms hold it: blocks around one shared table."""
    return plan.embedding == "shared" and not plan.relay


def save_stack(folder: Path, name: str, plan: Plan, trained: Trained, *, data: str) -> ModelSummary:
    """Write one trained model.

    Parameters
    ----------
    folder : Path
        Must not exist, or be empty.
    name : str
        Of the run in its manifest: a-z, 0-9 and "-".
    plan, trained : Plan, Trained
        What it is; see :func:`fits`.
    data : str
        Name of the text it was trained on.

    Raises
    ------
    LabError
        If the plan's outcome is not such a model.
    ModelFolderError
        As ``write_model_folder`` raises it.
    """
    if not fits(plan):
        raise LabError(f"{folder}: only blocks around one shared embedding make a model folder")
    manifest = create_manifest(
        name=name, now=0.0, size=plan.model, recipe=plan.recipe, data=data, seed=plan.seed, round_seconds=ROUND_SECONDS
    )
    rounds = -(-plan.steps // plan.averaging.every)
    samples = plan.steps * plan.recipe.batch * plan.averaging.replicas
    vectors = {EMBEDDING: trained.embeddings[0], **dict(enumerate(trained.thetas))}
    states = (SavedState(subject, values, rounds, samples) for subject, values in vectors.items())
    return write_model_folder(folder, manifest, states)
