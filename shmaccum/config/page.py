# SPDX-License-Identifier: Apache-2.0
"""``python -m shmaccum.config.page > docs/reference/options.rst`` generates the page of all options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shmaccum.common.units import spell_duration_ms, spell_size
from shmaccum.config import INT_MAX, Option, Options

HEAD = """\
Options
=======

All options of shmaccum. ``python -m shmaccum.config.page`` generates this page from the tables in ``shmaccum/config``.

Options that Kafka also has use Kafka's names and defaults. ``linger_ms`` and ``linger.ms`` are equivalent, except for
``Arena.create`` and ``shmaccum create``, whose options are Python keywords and command-line flags. If Kafka's name
differs further, it is listed below the option's name and is also accepted. A size is a number of bytes or a text such
as ``32MiB``. A duration is a number of milliseconds or a text such as ``500ms``, ``2s`` or ``7d``. A duration above
its bound, including ``inf``, means forever and becomes that bound. An option that is unknown, otherwise out of bounds,
or in contradiction to another option is rejected. No option is ignored.
"""

TABLE_HEAD = """\
.. list-table::
   :header-rows: 1
   :widths: 27 12 13 17 55

   * - option
     - kind
     - default
     - bounds
     - meaning
"""


def spell(option: Option, value: Any) -> str:
    """Returns a value as a user writes it."""
    if value is None:
        return option.unset
    if option.kind == "size" and value >= 0:
        return spell_size(value)
    if option.kind == "duration" and value >= 0:
        return spell_duration_ms(value)
    if option.kind == "mode":
        return f"{value:04o}"
    if option.kind == "percent":
        return f"{value}%"
    if option.kind == "boolean":
        return str(value).lower()
    return str(value) if value != () else "none"


def bounds(option: Option) -> str:
    """Returns a short text of the accepted values; empty if every value of the kind is accepted."""
    if option.choices:
        return ", ".join(option.choices)
    is_bounded_above = option.maximum is not None and option.maximum < INT_MAX
    lower = None if option.minimum is None else spell(option, option.minimum)
    upper = spell(option, option.maximum) if is_bounded_above else None
    if lower and upper:
        return f"{lower} to {upper}"
    return f"at least {lower}" if lower else ""


def kafka_name(name: str, option: Option) -> str | None:
    """Returns Kafka's name, if it differs from the option's name with dots for underscores."""
    return option.kafka if option.kafka and option.kafka.replace(".", "_") != name else None


def _row(name: str, option: Option) -> Iterator[str]:
    other = kafka_name(name, option)
    yield f"   * - ``{name}`` ``{other}``\n" if other else f"   * - ``{name}``\n"
    for cell in (option.kind, f"``{spell(option, option.default)}``", bounds(option), option.sentence):
        yield f"     - {cell}".rstrip() + "\n"


def _section(table: type[Options]) -> Iterator[str]:
    title = f"Options of the {table.scope}"
    yield f"\n{title}\n{'-' * len(title)}\n\nGiven to {table.place}.\n\n{TABLE_HEAD}"
    for name, option in table.table().items():
        yield from _row(name, option)


def options_page() -> str:
    """Returns the page as reStructuredText."""
    return HEAD + "".join(line for table in Options.find_tables() for line in _section(table))


if __name__ == "__main__":
    print(options_page(), end="")
