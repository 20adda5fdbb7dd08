# SPDX-License-Identifier: Apache-2.0
"""``shmaccum options`` shows every option, in columns and as JSON."""

from __future__ import annotations

import pytest

from shmaccum.cli.options import KINDS
from shmaccum.config import Options
from tests.unit.cli.conftest import Shell


def test_every_table_is_shown() -> None:
    assert {table for tables in KINDS.values() for table in tables} == set(Options.find_tables())


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_shows_its_tables(shell: Shell, kind: str, columns: int) -> None:
    shown = shell("options", kind, columns=columns).stdout
    assert max(map(len, shown.splitlines())) <= columns
    for table in KINDS[kind]:
        assert f"Options of the {table.scope}" in shown
        for name in table.table():
            assert f"\n{name} " in shown, "a name is shown whole, so that it can be copied"


def test_without_a_kind_all_are_shown(shell: Shell) -> None:
    shown = shell("options").stdout
    assert [table.scope for table in Options.find_tables() if f"Options of the {table.scope}" not in shown] == []


def test_json_has_every_option_with_its_default(shell: Shell) -> None:
    documents = shell.json("options", "sender")
    assert [document["scope"] for document in documents] == ["sender"]
    options = {option["name"]: option for option in documents[0]["options"]}
    assert options["acks"] == {
        "name": "acks",
        "kafka": None,
        "kind": "choice",
        "default": "all",
        "bounds": "all, -1, 1, 0",
        "choices": ["all", "-1", "1", "0"],
        "meaning": options["acks"]["meaning"],
    }
    assert options["delivery_timeout_ms"]["default"] == "2min"


def test_an_unknown_kind_is_refused(shell: Shell) -> None:
    assert "is not one of" in shell("options", "broker", code=2).stderr
