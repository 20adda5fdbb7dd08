# SPDX-License-Identifier: Apache-2.0
"""The parts that all commands share: finding a command, failing, printing JSON, opening an arena.

Exit codes of every command: 0 it is done and all is well. 1 it is done and something is not well (findings,
undelivered records, a damaged log). 2 it could not be done (no such arena, a wrong option, no permission); 3 its arena
was removed while it ran. A command that was interrupted ends with 130, one whose reader went away with 141, as a shell
would say.
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
        "recover": "Recover an arena after a crash, show that first, or copy its records out.",
    },
    "Sender": {
        "sender": "Deliver the records that all processes append.",
        "stop": "Ask the sender of an arena to leave, and wait for it.",
        "ship": "Send a log directory to Kafka, once or while it is written.",
    },
    "Log": {
        "consume": "Write records as they come, alone or as a member of a group.",
        "tail": "Write the last records of a topic, and those to come.",
        "topics": "Look at the topics of a log directory: list, describe, create, delete, partitions.",
        "groups": "Look at the consumer groups of a log directory: list, describe, reset, delete, export.",
        "log": "Read and check a log directory: cat, info, offsets, verify.",
    },
    "Server": {
        "serve": "Serve a log directory to Kafka clients.",
        "users": "Change the users of a served log, and the rights of each user.",
    },
    "Look": {
        "ls": "List the arenas of this host.",
        "stat": "Show the work of an arena, live.",
        "top": "Show the processes of an arena, live.",
        "health": "Tell whether an arena is well, with an exit code for probes.",
        "inspect": "Show the content of an arena: tables, slots, records, results.",
        "metrics": "Print or serve the facts of an arena for Prometheus.",
        "options": "Show every option, one table per kind.",
    },
}
"""Every command by the thing that it is for: the module of this package with its name has the rest."""
COMMANDS: Mapping[str, str] = {name: text for commands in COMMANDS_OF.values() for name, text in commands.items()}

Function = TypeVar("Function", bound=Callable[..., Any])


# --- failing


class Failure(click.ClickException):
    """A sentence for the user of a command that could not do what it was asked for."""

    exit_code = EXIT_IMPOSSIBLE

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(readable(f"shmaccum: {self.message}"), file=file or sys.stderr)


class ArenaRemovedFailure(Failure):
    """The arena was removed while the command served it."""

    exit_code = EXIT_CODE


def sentence_of(error: BaseException) -> str:
    """The sentence that a user is told about an expected error."""
    if isinstance(error, UnicodeEncodeError):
        return f"{os.fsencode(error.object)!r} cannot be read in this locale: set one with UTF-8, as LANG=C.UTF-8 does"
    if isinstance(error, OSError) and not isinstance(error, ShmaccumError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or (type(error).__doc__ or type(error).__name__).splitlines()[0]


class Command(click.Command):
    """A command that knows ``--debug`` and turns what is expected to fail into a sentence."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.params.append(
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                help="Show the traceback of an error.",
                is_eager=True,
                callback=_keep_debug,
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The interpreter flushes standard output at its end; into a closed pipe that would be an error of its own.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(EXIT_READER_GONE)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except (ShmaccumError, OSError, UnicodeEncodeError) as error:
            if ctx.meta.get("shmaccum.debug"):
                import traceback  # slow to import, as the others below: most commands need none of them

                traceback.print_exc()
            raise Failure(sentence_of(error)) from error


def _keep_debug(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    ctx.meta["shmaccum.debug"] = value


# --- finding


class CommandGroup(click.Group):
    """A group that suggests the nearest name."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            import difflib

            if near := difflib.get_close_matches(args[0], self.list_commands(ctx), n=1):
                ctx.fail(f"there is no command {args[0]!r}: did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """The commands of `COMMANDS`; only the module of the one that is called is imported."""

    def main(self, *arguments: Any, **keywords: Any) -> Any:
        # A character that the terminal's encoding lacks is shown as an escape instead of ending the command.
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
        """The commands that begin so, and the options of the group; no module of a command is imported."""
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
    epilog="An ARENA is a name (POSIX shared memory) or the path of a file. Exit codes: 0 all is well, 1 something is "
    "not well, 2 it could not be done.",
)
@click.version_option(__version__, "--version", prog_name="shmaccum")
def main() -> None:
    """One Kafka producer per host, shared by every Python process through memory."""


# --- shared options


def complete_arena(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The arenas of this host that begin so; for a path, the files as well."""
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
    help="The widest permissions, in octal, with which the arena is accepted.",
)

owning_group_option = click.option(
    "--group",
    "arena_group",
    metavar="GROUP",
    help="The group that a shared arena has to belong to, by name or number.  [default: any group of this process]",
)


def parse_mode(text: str) -> int:
    """Permissions from octal text."""
    try:
        return int(text, base=8)
    except ValueError:
        raise click.BadParameter(f"{text!r} are no permissions: write them in octal, like 0600") from None


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """Options given as ``-X name=value``.

    Raises:
        InvalidArgumentError: without a value, or given twice.
    """
    given: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name:
            raise InvalidArgumentError(f"{text!r} is no option with its value: write it like -X linger.ms=5")
        if name in given:
            raise InvalidArgumentError(f"{name} is given twice")
        given[name] = value
    return given


@contextlib.contextmanager
def looking_at(arena_name: str) -> Iterator[Arena]:
    """The arena, opened read-only: live or damaged, whoever may write it; nothing of it can be changed."""
    with Arena.open_read_only(arena_name, mode=ANY_MODE) as arena:
        yield arena


def start_logging(level: int) -> None:
    """A command that stays in the foreground logs to standard error from this level on."""
    import logging

    logging.basicConfig(level=level, stream=sys.stderr, format=LOG_FORMAT, datefmt=LOG_TIME_FORMAT)


def print_json(document: Any) -> None:
    """One line of JSON."""
    import json

    click.echo(json.dumps(document, default=_as_json))


def _as_json(value: Any) -> Any:
    """Bytes are shown as text where they are text."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "backslashreplace")
    raise TypeError(f"{type(value).__name__} has no JSON")
