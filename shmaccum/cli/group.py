# SPDX-License-Identifier: Apache-2.0
"""The parts that all commands share: finding commands, reporting failures, printing JSON, opening an arena.

Exit codes of every command: 0 success. 1 the command ran and found a problem (findings, undelivered records, a damaged
log). 2 the command failed (no such arena, a wrong option, no permission). 3 the arena was removed while the command
ran. 130 the command was interrupted. 141 the reader of its output closed the pipe. The last two are those of a shell.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from shmaccum import __version__
from shmaccum.arena import Arena
from shmaccum.arena.removal import EXIT_CODE
from shmaccum.cli.drawing import readable
from shmaccum.exceptions import InvalidArgumentError, ShmaccumError

EXIT_BAD = 1
EXIT_IMPOSSIBLE = 2
EXIT_INTERRUPTED = 130
EXIT_READER_GONE = 141
ANY_MODE = 0o777
LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s"
LOG_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"

COMMANDS_OF: Mapping[str, Mapping[str, str]] = {
    "Arena": {
        "create": "Create an arena.",
        "remove": "Remove arenas.",
        "produce": "Send lines as records.",
        "check": "Check an arena's invariants.",
        "recover": "Recover an arena after a crash, preview the recovery, or copy its records out.",
    },
    "Sender": {
        "sender": "Deliver the records of all processes.",
        "stop": "Stop the sender of an arena, and wait until it has stopped.",
        "ship": "Send a log directory to Kafka, once or continuously.",
    },
    "Log": {
        "consume": "Write records as they arrive, alone or as a member of a group.",
        "tail": "Write the last records of a topic, then new ones as they arrive.",
        "topics": "Manage the topics of a log directory: list, describe, create, delete, partitions.",
        "groups": "Manage the consumer groups of a log directory: list, describe, reset, delete, export.",
        "log": "Read and check a log directory: cat, info, offsets, verify.",
    },
    "Server": {
        "serve": "Serve a log directory to Kafka clients.",
        "users": "Manage the users of a served log and their rights.",
    },
    "Inspect": {
        "ls": "List the arenas on this host.",
        "stat": "Show the activity of an arena, live.",
        "top": "Show the processes of an arena, live.",
        "health": "Check the health of an arena, with an exit code for probes.",
        "inspect": "Show the contents of an arena: tables, slots, records, results.",
        "metrics": "Print or serve the metrics of an arena for Prometheus.",
        "options": "Show every option, one table per kind.",
    },
}
"""Every command with its help text, by subject. The module of the same name in this package implements it."""
COMMANDS: Mapping[str, str] = {name: text for commands in COMMANDS_OF.values() for name, text in commands.items()}

Function = TypeVar("Function", bound=Callable[..., Any])


# --- failing


class Failure(click.ClickException):
    """A command failed. The message is one sentence with a remedy."""

    exit_code = EXIT_IMPOSSIBLE

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(readable(f"shmaccum: {self.message}"), file=file or sys.stderr)


class ArenaRemovedFailure(Failure):
    """The arena was removed while the command used it."""

    exit_code = EXIT_CODE


def sentence_of(error: BaseException) -> str:
    """Return the message to print for an expected error."""
    if isinstance(error, UnicodeEncodeError):
        return (
            f"{os.fsencode(error.object)!r} cannot be decoded in this locale: set a UTF-8 locale, such as LANG=C.UTF-8"
        )
    if isinstance(error, OSError) and not isinstance(error, ShmaccumError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or (type(error).__doc__ or type(error).__name__).splitlines()[0]


class Command(click.Command):
    """A command with ``--debug`` that reports expected errors as a message without a traceback."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.params.append(
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                help="Show the traceback of an error.",
                is_eager=True,
                callback=_store_debug,
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The interpreter flushes standard output at exit, which would raise again on the closed pipe.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(EXIT_READER_GONE)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except (ShmaccumError, OSError, UnicodeEncodeError) as error:
            if ctx.meta.get("shmaccum.debug"):
                import traceback  # imported here, like others below, because most commands do not need it

                traceback.print_exc()
            raise Failure(sentence_of(error)) from error


def _store_debug(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    ctx.meta["shmaccum.debug"] = value


# --- finding


class CommandGroup(click.Group):
    """A group that suggests the nearest command name."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            import difflib

            if near := difflib.get_close_matches(args[0], self.list_commands(ctx), n=1):
                ctx.fail(f"unknown command {args[0]!r}: did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """The commands of `COMMANDS`. Only the module of the called command is imported."""

    def main(self, *arguments: Any, **keywords: Any) -> Any:
        # Show a character that the terminal's encoding lacks as an escape, instead of failing.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*arguments, **keywords)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"shmaccum.cli.{cmd_name}").command
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the matching commands and the options of the group, without importing a command's module."""
        found = {name: sentence for name, sentence in COMMANDS.items() if name.startswith(incomplete)}
        items = [CompletionItem(name, help=sentence) for name, sentence in found.items()]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        for title, commands in COMMANDS_OF.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="An ARENA is a name (POSIX shared memory) or the path of a file. Exit codes: 0 success, 1 a problem was "
    "found, 2 the command failed.",
)
@click.version_option(__version__, "--version", prog_name="shmaccum")
def main() -> None:
    """One Kafka producer per host, shared by every Python process through memory."""


# --- shared options


def complete_arena(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the matching arenas on this host. If the text has a slash, the shell adds files."""
    from shmaccum.observe.host import arena_names

    found = [CompletionItem(name) for name in arena_names() if name.startswith(incomplete)]
    return [*found, CompletionItem(incomplete, type="file")] if "/" in incomplete else found


arena_argument = click.argument("arena_name", metavar="ARENA", shell_complete=complete_arena)
json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON with stable keys.")
mode_option = click.option(
    "--mode",
    "arena_mode",
    metavar="MODE",
    default="0600",
    show_default=True,
    callback=lambda _ctx, _parameter, value: parse_mode(value),
    help="The widest permissions that the arena may have, in octal.",
)

owning_group_option = click.option(
    "--group",
    "arena_group",
    metavar="GROUP",
    help="The group that must own a shared arena, by name or number.  [default: any group of this process]",
)


def parse_mode(text: str) -> int:
    """Parse permissions in octal."""
    try:
        return int(text, base=8)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a file mode: write it in octal, like 0600") from None


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """Parse options given as ``-X name=value``.

    Raises:
        InvalidArgumentError: an option has no value, or is given twice.
    """
    given: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name:
            raise InvalidArgumentError(f"{text!r} is not NAME=VALUE: write it like -X linger.ms=5")
        if name in given:
            raise InvalidArgumentError(f"{name} is given twice: give it once")
        given[name] = value
    return given


@contextlib.contextmanager
def opened_read_only(arena_name: str) -> Iterator[Arena]:
    """Open the arena read-only, whatever its owner, permissions and state; it cannot be changed through this object."""
    with Arena.open_read_only(arena_name, mode=ANY_MODE) as arena:
        yield arena


def start_logging(level: int) -> None:
    """Log to standard error from this level on, for a command that runs in the foreground."""
    import logging

    logging.basicConfig(level=level, stream=sys.stderr, format=LOG_FORMAT, datefmt=LOG_TIME_FORMAT)


def print_json(document: Any) -> None:
    """Print one line of JSON."""
    import json

    click.echo(json.dumps(document, default=_as_json))


def _as_json(value: Any) -> Any:
    """Return bytes as text; bytes that are not UTF-8 are escaped."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "backslashreplace")
    raise TypeError(f"{type(value).__name__} has no JSON form")
