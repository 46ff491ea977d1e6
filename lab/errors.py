"""What can go wrong with an experiment."""

from blockswarm.errors import BlockswarmError, UsageError


class LabError(BlockswarmError):
    """An experiment cannot be run, resumed or reported."""


class LabUsageError(LabError, UsageError):
    """It cannot be what was asked for: a name, a setting, or a file or folder that was named."""
