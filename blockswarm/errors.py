"""The root of every error this project raises on purpose."""


class BlockswarmError(Exception):
    """An expected failure, told to the user in one line.

    The message says what happened, to which thing (file and line, peer id, address, field), and what to do.
    The command line prints it without a traceback and exits non-zero; ``--debug`` shows the traceback.
    """
