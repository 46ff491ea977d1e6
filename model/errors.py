"""What can go wrong with a model or its data, each told in one line."""

from blockswarm.errors import BlockswarmError, UsageError


class ModelError(BlockswarmError):
    """A configuration, an array or a call that the model cannot work with; the message names the field or shape."""


class OptionError(ModelError, UsageError):
    """A choice of the user (sampling, device) that cannot be met; the message names it."""


class CorpusError(ModelError, UsageError):
    """Training text that is missing, unreadable, empty or too short; the message names the path and what is needed."""
