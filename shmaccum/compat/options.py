# SPDX-License-Identifier: Apache-2.0
"""The options of other libraries' producers, each with an option of shmaccum or with a reason.

`SHARED` has the options that more than one library has, under Kafka's names, which are also shmaccum's. The module of
each library adds its other options, and options whose values it spells differently (`rows_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shmaccum.config import ArenaOptions, Options, ProducerOptions, SenderOptions
from shmaccum.exceptions import InvalidArgumentError

PAGE_SIZE = 4096
NO_DEFAULT = object()
TABLES: Mapping[str, type[Options]] = {"arena": ArenaOptions, "sender": SenderOptions, "producer": ProducerOptions}


def _is_spelled(default: str, given: Any) -> bool:
    """True for another form of a text, such as 5 for "5" and True for "true"."""
    try:
        if not isinstance(given, bool):
            return float(given) == float(default)
    except (TypeError, ValueError):
        pass
    return str(given).strip().lower() == default.lower()


@dataclass(frozen=True)
class OptionRow:
    """The handling of one option.

    Attributes:
        owners: the owners that get it: "arena", "sender", "sink", "producer". Empty if it has no use, or is refused.
        name: shmaccum's name of it.
        read: converts the library's value, or None if both values are the same.
        why: the reason of an option that no owner gets.
        is_refused: any value but an empty one is an error.
        is_met: the library's module implements it.
        default: the library's default. A text stands for every spelling of it.
    """

    owners: tuple[str, ...] = ()
    name: str = ""
    read: Callable[[Any], Any] | None = None
    why: str = ""
    is_refused: bool = False
    is_met: bool = False
    default: Any = NO_DEFAULT

    def has_default(self, given: Any) -> bool:
        """True for the library's default, which counts as not given. The types must match: True is not equal to 1."""
        if given is self.default or (type(given) is type(self.default) and bool(given == self.default)):
            return True
        return isinstance(self.default, str) and _is_spelled(self.default, given)

    @property
    def sentence(self) -> str:
        """The text of the reference page."""
        if self.owners:
            return f"``{self.name}`` of the {' and the '.join(self.owners)}"
        if self.is_met:
            return "the same here"
        return f"refused: {self.why}" if self.is_refused else f"without use: {self.why}"


Rows = Mapping[str, OptionRow]


def owners_of(name: str) -> tuple[str, ...]:
    """Returns the owners whose tables have an option. The sink has each option that no other table has."""
    return tuple(owner for owner, table in TABLES.items() if name in table.table()) or ("sink",)


def to(name: str, read: Callable[[Any], Any] | None = None, *, owner: str = "") -> OptionRow:
    """Makes the row of an option that becomes one of shmaccum's.

    Args:
        name: shmaccum's name.
        read: converts the library's value.
        owner: the only owner that gets it. The default is every owner whose table has it.
    """
    return OptionRow((owner,) if owner else owners_of(name), name, read)


def same(*names: str) -> Rows:
    """Makes the rows of options with the same names and values as in shmaccum."""
    return {name: to(name) for name in names}


def to_partitioner(*builtin: type) -> OptionRow:
    """Makes the row of a partitioner. The built-in one does the work of the library's own classes."""
    return to("partitioner", lambda given: "builtin" if isinstance(given, builtin) else given)


def without_use(why: str) -> OptionRow:
    """Makes the row of an option that is accepted and changes nothing."""
    return OptionRow(why=why)


def met() -> OptionRow:
    """Makes the row of an option that the library's module implements."""
    return OptionRow(is_met=True)


def refused(why: str) -> OptionRow:
    """Makes the row of an option that cannot be supported."""
    return OptionRow(why=why, is_refused=True)


def acks(given: Any) -> str:
    """Returns the acknowledgements that a batch needs. -1 is another spelling of all."""
    return "all" if str(given) in {"-1", "all"} else str(given)


def batch_size(given: Any) -> int:
    """Returns the size of a batch. An arena reserves whole pages, so a smaller size, and 0 for none, becomes a page."""
    return max(int(given), PAGE_SIZE)


NO_CONNECTIONS = "this process has no connections"
OBJECT = "an object of this process cannot reach the sender's process"


def _importable(given: Any) -> str:
    """Accepts ``module:name``, which another process can import."""
    if not isinstance(given, str):
        raise InvalidArgumentError(
            f"sasl_oauth_token_provider: {OBJECT}: write its place as text, module:function, or set "
            "shmaccum_sasl_oauthbearer_method"
        )
    return given


SHARED: Rows = {
    **same(
        "allow_auto_create_topics",
        "client_dns_lookup",
        "client_id",
        "compression_type",
        "connections_max_idle_ms",
        "enable_idempotence",
        "max_request_size",
        "metadata_max_age_ms",
        "reconnect_backoff_max_ms",
        "reconnect_backoff_ms",
        "request_timeout_ms",
        "retry_backoff_ms",
        "sasl_kerberos_domain_name",
        "sasl_kerberos_service_name",
        "sasl_mechanism",
        "sasl_plain_password",
        "sasl_plain_username",
        "security_protocol",
        "transaction_timeout_ms",
        "transactional_id",
    ),
    "acks": to("acks", acks),
    "batch_size": to("batch_size", batch_size),
    "linger_ms": to("linger_ms", owner="producer"),
    "api_version": without_use("the sender requests the versions of the brokers"),
    "sasl_oauth_token_provider": to("sasl_oauth_token_provider", _importable),
}
"""The options that more than one library has, under Kafka's names."""


def rows_of(own: Rows, defaults: Mapping[str, Any], separator: str = "_") -> Rows:
    """Returns the table of a library: the shared rows of its options, overridden by its own rows.

    Args:
        defaults: the library's defaults.
        separator: separates the words of a name in the library.
    """
    rows = {**{name.replace("_", separator): row for name, row in SHARED.items()}, **own}
    names = dict.fromkeys([*defaults, *own])
    return {name: replace(rows[name], default=defaults.get(name, NO_DEFAULT)) for name in names if name in rows}
