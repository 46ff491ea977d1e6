"""``blockswarm``: the command group, and the one place where errors become a line and an exit code.

Command modules are imported only when they are run, and import torch, hivemind or libp2p only inside their function:
``blockswarm --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from blockswarm import __version__
from blockswarm.cli.entry import EXIT_INTERRUPTED, raise_on_ctrl_c
from blockswarm.errors import BlockswarmError, UsageError
from blockswarm.naming import options_as_flags

COMMANDS = {
    "init": "Write the manifest of a new swarm.",
    "count": "Count the n-grams of a text, for a swarm to mix in.",
    "identity": "Make or show the identity of a peer.",
    "bootstrap": "Run a bootstrap node: newcomers meet the swarm there.",
    "join": "Volunteer: train and serve one block.",
    "status": "Show who holds which block, and how training goes.",
    "generate": "Continue a text with the swarm's model.",
    "gateway": "Serve an OpenAI-compatible HTTP API over the swarm's model.",
    "evaluate": "Measure the model's cross-entropy on a text.",
    "export": "Write the swarm's model into a folder.",
    "experiment": "Measure the learning method on a text, without a swarm.",
    "simulate": "See what a swarm will do before it exists.",
    "plan": "Advise on rounds, groups and replicas of a swarm to be.",
    "demo": "Run a whole swarm on this machine for two minutes.",
}
"""Command name to its line in ``--help``. The module ``blockswarm.cli.<name>`` holds it as ``command``."""

EXIT_FAILED = 1
EXIT_USAGE = 2
"""Wrong usage: an unknown option, a value that cannot work, an input file that is missing or malformed."""
EXIT_PIPE_CLOSED = 141
"""128 + SIGPIPE, what a shell reports for a program whose reader went away."""


class _State:
    """What ``--debug``, given before or after the command's name, leaves for `run`."""

    debug = False


def _set_debug(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    _State.debug = _State.debug or value


def _debug_option() -> click.Option:
    return click.Option(
        ["--debug"], is_flag=True, expose_value=False, callback=_set_debug, help="Show the traceback of an error."
    )


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it or to show its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"blockswarm.cli.{cmd_name}").command
        if not any(parameter.name == "debug" for parameter in command.params):
            command.params.append(_debug_option())
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, params=[_debug_option()], context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="blockswarm", message="%(prog)s %(version)s")
def cli() -> None:
    """Volunteers train one language model together and serve it, with no central coordinator.

    \b
    Start a swarm and join it:
      blockswarm bootstrap --init tiny --peers-file bootstrap_peers.txt
      blockswarm join --block auto

    Every command explains itself: blockswarm COMMAND --help
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    Whatever goes wrong is one line on stderr, unless ``--debug`` is given; a `UsageError` and what click finds in the
    command line itself are wrong usage, everything else is a failure.
    """
    _State.debug = False
    words = list(sys.argv[1:] if arguments is None else arguments)
    with options_as_flags():
        return _run(words or ["--help"])


def _run(words: list[str]) -> int:
    try:
        raise_on_ctrl_c()
        # Not cli.main(): it turns a closed pipe into an exit of its own.
        with cli.make_context("blockswarm", words) as context:
            result = cli.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        return _failed(_one_line(error), EXIT_USAGE)
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more while it ends; with nobody reading that would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except UsageError as error:
        return _failed(str(error), EXIT_USAGE)
    except BlockswarmError as error:
        return _failed(str(error), EXIT_FAILED)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _failed(f"{error.strerror or error}{where}", EXIT_FAILED)
    except Exception as error:
        hint = "this is a bug; `blockswarm --debug …` shows where"
        return _failed(f"{type(error).__name__}: {error} ({hint})", EXIT_FAILED)


def _failed(message: str, code: int) -> int:
    if _State.debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    return code


def _one_line(error: click.ClickException) -> str:
    """What click found in the command line, in the form of all other errors, and whose help to read."""
    text = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context is not None else "blockswarm"
    return f"{text[:1].lower()}{text[1:]} (see `{command} --help`)"


def main() -> NoReturn:
    """What `blockswarm.cli.entry` goes on with once everything is imported."""
    code = run()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    # Every command has closed what it opened. Taking torch and hivemind apart object by object costs a second of CPU,
    # which on a busy machine is many seconds in which a volunteer told to end still seems to run.
    os._exit(code)
