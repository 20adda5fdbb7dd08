# SPDX-License-Identifier: Apache-2.0
"""``shmaccum users``: the users file of a server, with users and rights."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from shmaccum.cli.drawing import Column, Table
from shmaccum.cli.group import Command, CommandGroup, json_option, print_json
from shmaccum.cli.terminal import show
from shmaccum.config.secret import Secret
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.server.users import HASHES, Grant, User, Verifier, changed_users, check_name, parse_grant, read_users

file_argument = click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
name_argument = click.argument("name", metavar="NAME")
right_argument = click.argument("right", type=click.Choice(["read", "write", "admin"]))
resource_argument = click.argument("resource", metavar="RESOURCE")


@click.group("users", cls=CommandGroup)
def command() -> None:
    """Manage the users of a served log and their rights.

    FILE is what `shmaccum serve DIR -X users_file=FILE` reads. A running server applies a change within a second.
    """


@command.command("add", cls=Command)
@file_argument
@name_argument
@click.option(
    "--password",
    "place",
    metavar="PLACE",
    help="The place of the password: env:NAME or file:PATH. By default, the command prompts for it.",
)
def add(path: str, name: str, place: str | None) -> None:
    """Add a user, or set a new password.

    The file stores salted verifiers for SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN, but not the password. A new user has no
    rights: see `shmaccum users allow`.
    """
    check_name(name)
    password = _password(place)
    verifiers = {mechanism: Verifier.of(password, mechanism) for mechanism in HASHES}
    with changed_users(path) as users:
        known = users.get(name)
        users[name] = User(name, verifiers, known.grants if known else ())
    click.echo(f"{name} has a new password" if known else f"{name} was added, without rights")


def _password(place: str | None) -> str:
    if place is None:
        if not sys.stdin.isatty():
            raise InvalidArgumentError("no terminal to prompt for the password: give --password file:PATH")
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return password
    secret = Secret(place)
    if secret.place is None:
        raise InvalidArgumentError(
            "every user of this host can read a password on the command line: give --password env:NAME or file:PATH"
        )
    if not (password := secret.reveal()):
        raise InvalidArgumentError(f"the password in {place} is empty: set a password there")
    return password


@command.command("remove", cls=Command)
@file_argument
@name_argument
def remove(path: str, name: str) -> None:
    """Remove a user. Connections of the user end within a second."""
    with changed_users(path) as users:
        _known(users, name)
        del users[name]
    click.echo(f"{name} was removed")


@command.command("allow", cls=Command)
@file_argument
@name_argument
@right_argument
@resource_argument
def allow(path: str, name: str, right: str, resource: str) -> None:
    """Give a user a right.

    RESOURCE is topic:NAME, group:NAME or transactional-id:NAME. PREFIX* instead of NAME matches all names that start
    with PREFIX.
    """
    grant = parse_grant(right, resource)
    with _changed_grants(path, name) as grants:
        if grant not in grants:
            grants.append(grant)
    click.echo(f"{name} may {grant}")


@command.command("revoke", cls=Command)
@file_argument
@name_argument
@right_argument
@resource_argument
def revoke(path: str, name: str, right: str, resource: str) -> None:
    """Revoke a right. RESOURCE must be spelled as in `shmaccum users allow`."""
    grant = parse_grant(right, resource)
    with _changed_grants(path, name) as grants:
        if grant not in grants:
            raise InvalidArgumentError(f"{name} has no right {grant}: `shmaccum users list` shows the rights")
        grants.remove(grant)
    click.echo(f"{name} may no longer {grant}")


@contextmanager
def _changed_grants(path: str, name: str) -> Iterator[list[Grant]]:
    """Yields the rights of a known user as a list, and writes the list at the end of the block."""
    with changed_users(path) as users:
        user = _known(users, name)
        grants = list(user.grants)
        yield grants
        users[name] = User(name, user.verifiers, tuple(grants))


@command.command("list", cls=Command)
@file_argument
@json_option
def list_users(path: str, is_json: bool) -> None:
    """Show the users and their rights."""
    users = read_users(path)
    if is_json:
        print_json([{"name": user.name, "rights": [str(grant) for grant in user.grants]} for user in users.values()])
        return
    view = Table(Column("user", style="cyan"), Column("rights", is_folded=True), header_style="bold")
    for user in users.values():
        view.add_row(user.name, "\n".join(map(str, user.grants)) or "none")
    show(view)


def _known(users: Mapping[str, User], name: str) -> User:
    if name not in users:
        raise InvalidArgumentError(f"there is no user {name}: add one with `shmaccum users add`")
    return users[name]
