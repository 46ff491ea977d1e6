"""What goes wrong on the bench."""

from blockswarm.errors import BlockswarmError


class HostsError(BlockswarmError):
    """Hosts cannot be built, were described wrongly, or are gone."""
