# SPDX-License-Identifier: Apache-2.0
"""``python -m shmaccum.config.dicts_source > shmaccum/config/dicts.py`` generates typed dictionaries from the tables.

An editor completes the options of `Producer`, `Arena.create`, `Sender` and `ensure_sender` from them, and a type
checker finds a wrong name or type before the program runs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import shmaccum.config  # defines the tables
from shmaccum.config.option import Option
from shmaccum.config.table import Options

LINE_LENGTH_MAX = 120
INDENT = "    "

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""The options of each table as a typed dictionary, for editors and type checkers.

``python -m shmaccum.config.dicts_source`` generates this file from the tables in this folder: change the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

from shmaccum.config.secret import Secret
'''

TAIL = '''

class KeptProducerOptionsDict(
    ProducerOptionsDict,
    SenderOptionsDict,
    ServerOptionsDict,
    KafkaSinkOptionsDict,
    PlacelessSinkOptionsDict,
    total=False,
):
    """Options of `shmaccum.Producer`. With a sink, these include the options of the sender and of the sink."""
'''

TYPES = {
    "size": "int | str",
    "duration": "int | str",
    "count": "int",
    "mode": "int | str",
    "percent": "int | str",
    "factor": "float | str",
    "boolean": "bool",
    "text": "str",
    "group": "int | str",
    "secret": "str | Secret",
    "list": "Iterable[Any]",
}
"""The type annotation of each kind of option. Choices and functions are handled separately."""


def _literal(option: Option) -> str:
    return "Literal[" + ", ".join(f'"{choice}"' for choice in option.choices) + "]"


def type_of(option: Option) -> str:
    """Returns the annotation of an option: the types that a user may give."""
    if option.kind == "choice":
        written = _literal(option)
    elif option.kind == "function":
        written = f"{_literal(option)} | Callable[..., Any] | object" if option.choices else "object"
    else:
        written = TYPES[option.kind]
    return f"{written} | None" if option.default is None and option.kind != "function" else written


def _annotation(name: str, option: Option) -> Iterator[str]:
    line = f"{INDENT}{name}: {type_of(option)}"
    if len(line) <= LINE_LENGTH_MAX:
        yield line
        return
    yield f"{INDENT}{name}: Literal["
    yield from (f'{INDENT * 2}"{choice}",' for choice in option.choices)
    yield f"{INDENT}]" + " | None" * (option.default is None)


def _sentence(option: Option) -> Iterator[str]:
    text = option.sentence.replace("\\", "\\\\")
    lines = textwrap.wrap(text, LINE_LENGTH_MAX - len(INDENT) - 6, break_on_hyphens=False)
    yield f'{INDENT}"""{lines[0]}' + ('"""' if len(lines) == 1 else "")
    for number, line in enumerate(lines[1:], start=2):
        yield f"{INDENT}{line}" + ('"""' if number == len(lines) else "")


def _dictionary(table: type[Options]) -> Iterator[str]:
    yield f"\n\nclass {table.__name__}Dict(TypedDict, total=False):"
    yield f'{INDENT}"""Options of the {table.scope}, as `shmaccum.{table.__name__}` parses them."""\n'
    for name, option in table.table().items():
        yield from _annotation(name, option)
        yield from _sentence(option)


def dicts_source() -> str:
    """Returns the text of ``shmaccum/config/dicts.py``."""
    lines = (line for table in shmaccum.config.Options.find_tables() for line in _dictionary(table))
    return HEAD + "\n".join(lines) + "\n" + TAIL


if __name__ == "__main__":
    print(dicts_source(), end="")
