"""What can go wrong with an experiment."""

from blockswarm.errors import BlockswarmError


class LabError(BlockswarmError):
    """An experiment cannot be run, resumed or reported."""
