# SPDX-License-Identifier: Apache-2.0
"""A table of options, and the parser that makes it from a user's options.

A table is a frozen dataclass, so each option is a typed attribute, and its field holds the row. Options that Kafka's
producer also has (org.apache.kafka.clients.producer.ProducerConfig) have Kafka's names and defaults::

    ProducerOptions.parse({"linger.ms": "5ms", "max_block_ms": 100})

Both spellings are accepted everywhere, as are sizes such as ``32MiB`` and durations such as ``500ms``. An option that
is unknown, out of range, or in contradiction to another option is rejected with a message that contains the remedy.
No option is silently ignored or adjusted, except that an overlong duration means forever (`shmaccum.config.option`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from shmaccum.config.option import Option
from shmaccum.config.secret import Secret
from shmaccum.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

MISSPELLING_SIMILARITY = 0.85
NAME_SIMILARITY = 0.8
WORD_SIMILARITY = 0.75
WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base class of the tables. An instance is made by `parse`, or directly from parsed values.

    Raises:
        InvalidArgumentError: a value is out of bounds, or two values contradict each other.
    """

    scope: ClassVar[str]
    """The owner of the options, as named in messages."""
    place: ClassVar[str]
    """The call or command that takes the options."""
    find_tables: ClassVar[Callable[[], tuple[type[Options], ...]]]
    """Returns all tables, in the order of the page. `shmaccum.config` sets it."""

    def __post_init__(self) -> None:
        for name, option in type(self).table().items():
            object.__setattr__(self, name, option.bounded(getattr(self, name)))
            option.check(name, getattr(self, name))
        refuse(self.contradictions())

    def contradictions(self) -> Iterator[str]:
        """Yields a sentence for each contradiction between options."""
        yield from ()

    @classmethod
    @functools.cache
    def table(cls) -> Mapping[str, Option]:
        """The rows by name, in the order of their definition."""
        return MappingProxyType({row.name: row.metadata["option"] for row in fields(cls)})

    @classmethod
    @functools.cache
    def spellings(cls) -> Mapping[str, str]:
        """Maps every accepted name, with underscores, to its attribute."""
        names = {name: name for name in cls.table()}
        names |= {_spelled(option.kafka): name for name, option in cls.table().items() if option.kafka}
        return MappingProxyType(names)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Parses a user's options, in either spelling. All other options get their defaults.

        Args:
            given: name -> value; ``max_block_ms`` or ``max.block.ms``, ``500`` or ``"500ms"``.

        Raises:
            InvalidArgumentError: an option is unknown, belongs to another scope, is given twice, is invalid, is out of
                bounds, or contradicts another option.
        """
        (options,) = parse_together(given, cls)
        assert isinstance(options, cls)
        return options


ABSENT: Mapping[str, str] = {
    "bootstrap_servers": "the sender's sink names the brokers: shmaccum sender ARENA --sink kafka:HOST:PORT",
    "sasl_jaas_config": "set sasl_plain_username and sasl_plain_password",
    **dict.fromkeys(("ssl_truststore_location", "ssl_truststore_certificates"), "set ssl_cafile to a PEM file"),
    **dict.fromkeys(
        ("ssl_keystore_location", "ssl_keystore_key", "ssl_keystore_certificate_chain"),
        "set ssl_certfile and ssl_keyfile to PEM files",
    ),
    **dict.fromkeys(
        ("ssl_truststore_password", "ssl_truststore_type", "ssl_keystore_password", "ssl_keystore_type"),
        "certificates are PEM files (ssl_cafile, ssl_certfile, ssl_keyfile; ssl_password opens the key)",
    ),
    "ssl_endpoint_identification_algorithm": "to turn the check off, set ssl_check_hostname=false",
    "sasl_login_callback_handler_class": "set sasl_oauthbearer_method=oidc or sasl_oauth_token_provider",
}
"""Options of Kafka's producer that no table has, and the replacement of each."""


# --- parsing


def _spelled(name: str) -> str:
    """Returns the spelling with underscores."""
    return name.replace(".", "_")


def folded(name: str) -> str:
    """Returns the name without case, dots and underscores, to compare names in the spellings of Spark users."""
    return _spelled(name).replace("_", "").lower()


def _words(name: str) -> list[str]:
    """Splits a name into words. Camel case is split, too: bufferMemory has two words."""
    return [word.lower() for word in WORDS.findall(name)]


def _has_words_of(name: str, other: str) -> bool:
    """True if each word of `name` resembles a word of `other`."""
    words = _words(other)
    return all(_similar_words(word, words, WORD_SIMILARITY) for word in _words(name))


def _similar_words(word: str, known: Iterable[str], similarity: float, count_max: int = 1) -> list[str]:
    """Returns the known words that resemble a word most, at most `count_max` of them."""
    import difflib  # slow to import, and only a misspelling needs it

    return difflib.get_close_matches(word, list(known), n=count_max, cutoff=similarity)


@functools.cache
def _spellings_by_folded_name(tables: tuple[type[Options], ...]) -> Mapping[str, str]:
    """Maps the folded form of every accepted name to one of its spellings."""
    return MappingProxyType({folded(spelling): spelling for table in tables for spelling in sorted(table.spellings())})


def _nearest(name: str, tables: tuple[type[Options], ...]) -> str | None:
    """Returns the name that was probably meant: it resembles the given one, and one of them has all words of the other.

    ``transaction.timeout.ms`` is not a misspelling of ``close_timeout_ms``: each has a word that the other lacks.
    """
    known = _spellings_by_folded_name(tables)
    misspelled = _similar_words(folded(name), known, MISSPELLING_SIMILARITY)
    near = _similar_words(folded(name), known, NAME_SIMILARITY, count_max=3)
    alike = [one for one in near if _has_words_of(name, known[one]) or _has_words_of(known[one], name)]
    return next((known[one] for one in (*misspelled, *alike)), None)


def _unknown(name: str, tables: tuple[type[Options], ...]) -> str:
    """Returns the message for a name that none of the tables has."""
    spelled = _spelled(name)
    whose = " or the ".join(table.scope for table in tables)
    is_own = folded(name) in _spellings_by_folded_name(tables)
    others = [other for other in Options.find_tables() if folded(name) in _spellings_by_folded_name((other,))]
    if others and not is_own:
        scopes = " and the ".join(dict.fromkeys(other.scope for other in others))
        place = others[0].place.replace("``", "'")
        return f"{name} is an option of the {scopes}: give it to {place}"
    if spelled in ABSENT:
        return f"{name} is not an option here: {ABSENT[spelled]}"
    nearest = _nearest(name, tables) or _nearest(name, Options.find_tables())
    advice = f"did you mean {nearest}?" if nearest else "'shmaccum options' lists all"
    return f"{name} is not an option of the {whose}: {advice}"


@dataclass(frozen=True)
class _Given:
    """A user's options: the given spelling and value of each attribute, and a sentence for each fault."""

    values: dict[str, tuple[str, Any]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def sort(cls, given: Mapping[str, Any], tables: tuple[type[Options], ...]) -> _Given:
        spellings = {spelling: name for table in tables for spelling, name in table.spellings().items()}
        found = cls()
        for name, value in given.items():
            attribute = spellings.get(_spelled(name))
            if attribute is None:
                found.faults.append(_unknown(name, tables))
            elif attribute in found.values:
                former = found.values[attribute][0]
                found.faults.append(f"{former} and {name} are the same option: give one of them")
            else:
                found.values[attribute] = (name, value)
        return found

    def parsed(self, table: type[Options]) -> dict[str, Any]:
        """Parses the values of one table. Each invalid value adds a fault."""
        values: dict[str, Any] = {}
        for attribute, option in table.table().items():
            if attribute in self.values:
                name, value = self.values[attribute]
                try:
                    values[attribute] = option.bounded(option.parse_named(name, value))
                    option.check(attribute, values[attribute])
                except InvalidArgumentError as error:
                    self.faults.append(str(error))
        return values


def refuse(faults: Iterable[str]) -> None:
    """Raises one error that lists all faults.

    Raises:
        InvalidArgumentError: there is at least one fault.
    """
    if sentences := list(dict.fromkeys(faults)):
        raise InvalidArgumentError("; ".join(sentences))


def parse_together(given: Mapping[str, Any], *tables: type[Options]) -> tuple[Options, ...]:
    """Parses options that are given together into one instance of each table, as ``-X`` does for a sender and its sink.

    Raises:
        InvalidArgumentError: as `Options.parse`. A name is unknown if none of the tables has it. The error lists all
            wrong names and values.
    """
    sorted_out = _Given.sort(given, tables)
    values = [sorted_out.parsed(table) for table in tables]
    refuse(sorted_out.faults)
    return tuple(table(**chosen) for table, chosen in zip(tables, values, strict=True))


# --- command lines


def _secrets() -> set[str]:
    """Returns every spelling of every secret option."""
    return {
        spelling
        for table in Options.find_tables()
        for spelling, name in table.spellings().items()
        if table.table()[name].kind == "secret"
    }


def is_literal_secret(name: str, value: Any) -> bool:
    """Returns whether the option is a secret, and the value is the secret itself instead of its place."""
    if _spelled(name) not in _secrets():
        return False
    return (value if isinstance(value, Secret) else Secret(str(value))).place is None


def command_line_value(name: str, value: Any) -> str:
    """Returns the text of an option on a command line. A secret is replaced by its place.

    Raises:
        InvalidArgumentError: the option is a secret, and the value is the secret itself.
    """
    if is_literal_secret(name, value):
        raise InvalidArgumentError(
            f"{name} would appear on a command line, which every user of this host can read: give it as env:NAME or "
            "file:PATH"
        )
    return str(value.place if isinstance(value, Secret) else value)
