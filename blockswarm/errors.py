"""The roots of every error this project raises on purpose."""


class BlockswarmError(Exception):
    """An expected failure, told to the user in one line.

    The message says what happened, to which thing (file and line, peer id, address, field), and what to do.
    The command line prints it without a traceback and exits with 1; ``--debug`` shows the traceback.
    """


class UsageError(BlockswarmError):
    """What was asked for cannot work: a value out of range, or an input file that is missing or malformed.

    Trying again is useless before the call is changed. The command line exits with 2, as for an unknown option.
    Options are called as the user writes them, see `blockswarm.naming.option`.
    """
