# SPDX-License-Identifier: Apache-2.0
"""Options of other libraries are assigned to their owners, and equal options lead to the same arena."""

from __future__ import annotations

import os
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.compat.options import NO_DEFAULT, SHARED, OptionRow, Rows, refused, rows_of, to, without_use
from shmaccum.compat.settings import OwnerOptions, sink_of
from shmaccum.exceptions import InvalidArgumentError

ROWS: Rows = {
    "linger": to("linger_ms", owner="producer"),
    "size": to("max_request_size"),
    "acks": to("acks"),
    "timeout": to("delivery_timeout_ms"),
    "protocol": to("security_protocol"),
    "mechanism": to("sasl_mechanism"),
    "user": to("sasl_plain_username"),
    "password": to("sasl_plain_password"),
    "version": without_use("brokers tell it"),
    "context": refused("it is an object"),
}
LOGIN = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "user": "me"}


def settings(servers: Any = "kafka1", **given: Any) -> OwnerOptions:
    found = OwnerOptions.split(given, ROWS, servers)
    found.complete()
    return found


def test_each_owner_gets_its_options() -> None:
    found = OwnerOptions.split({"linger": 7, "size": 9000, "protocol": "SSL", "version": 3, "context": None}, ROWS, "a")
    assert found.producer == {"linger_ms": 7}
    assert found.arena == {"max_request_size": 9000}
    assert found.sender == {"max_request_size": 9000}
    assert found.sink_options == {"security_protocol": "SSL"}
    assert found.sink == "kafka:a:9092"


def test_a_library_has_the_shared_rows_of_its_options_and_its_own_before_them() -> None:
    own = {"linger.ms": to("linger_ms", float, owner="producer"), "name": to("client_id")}
    rows = rows_of(own, {"linger.ms": 3, "request.timeout.ms": 7, "unknown": 1}, ".")
    assert list(rows) == ["linger.ms", "request.timeout.ms", "name"]
    assert (rows["linger.ms"].read, rows["linger.ms"].default) == (float, 3)
    assert rows["request.timeout.ms"].name == "request_timeout_ms"
    assert rows["request.timeout.ms"].owners == SHARED["request_timeout_ms"].owners == ("sender",)


@pytest.mark.parametrize(
    ("default", "given", "is_default"),
    [
        (5, 5, True),
        (5, "5", False),
        (5, 5.0, False),
        (1, True, False),
        (True, 1, False),
        ("5", 5, True),
        ("5", "5.0", True),
        ("5", " 6", False),
        ("1", True, False),
        ("1", 1, True),
        ("true", True, True),
        ("true", " TRUE ", True),
        ("true", 1, False),
        ("true", None, False),
        (None, None, True),
        (NO_DEFAULT, None, False),
    ],
)
def test_a_text_is_the_default_in_every_spelling_and_any_other_value_in_its_own(
    default: object, given: object, is_default: bool
) -> None:
    assert OptionRow(default=default).has_default(given) is is_default


def test_options_of_ours_go_where_our_tables_have_them() -> None:
    given = {"shmaccum_buffer_memory": "1MiB", "shmaccum.dead_letter": "log:x", "shmaccum_arena": "mine"}
    found = settings(**given, shmaccum_compression_type="zstd", shmaccum_close_timeout_ms=5)
    assert found.arena == {"buffer_memory": "1MiB"}
    assert found.sender["dead_letter"] == "log:x"
    assert found.sink_options == {"compression_type": "zstd"}
    assert found.producer == {"close_timeout_ms": 5}
    assert found.arena_name == "mine"


def test_every_wrong_option_is_reported_at_once() -> None:
    with pytest.raises(InvalidArgumentError, match=r"colour is not an option.*context is refused: it is an object"):
        OwnerOptions.split({"colour": 1, "context": 2}, ROWS, "a")


def test_options_of_a_cluster_are_left_out_for_another_sink() -> None:
    found = settings(**LOGIN, password="p", shmaccum_sink="log:here", shmaccum_partitions=3)
    assert found.sink_options == {"partitions": 3}


@pytest.mark.parametrize("servers", ["b:1,a", ["a:9092", "b:1"], "PLAINTEXT://a:9092, b:1", ("b:1", "a", "a")], ids=str)
def test_servers_have_one_spelling(servers: Any) -> None:
    assert sink_of(servers) == "kafka:a:9092,b:1"


def test_an_address_of_ipv6_keeps_its_colons() -> None:
    assert sink_of("[::1]:9093") == "kafka:[::1]:9093"
    assert sink_of("[::1]") == "kafka:[::1]:9092"


def test_equal_settings_name_one_arena_and_others_another() -> None:
    name = settings("a,b", acks="1", shmaccum_enable_idempotence=False).arena_name
    assert name.startswith(f"compat-a-9092-{os.getuid()}-")
    assert settings("b,a", linger=9, acks="1", shmaccum_enable_idempotence="false").arena_name == name
    assert settings("a", acks="1", shmaccum_enable_idempotence=False).arena_name != name
    assert settings("a,b").arena_name != name


def test_a_password_is_in_no_environment_and_no_command_line_and_is_no_part_of_the_name(arena: Arena) -> None:
    before = dict(os.environ)
    found = settings(**LOGIN, password="geheim")
    assert os.environ == before
    assert found.arena_name == settings(**LOGIN, password="env:OTHER").arena_name
    assert found.recipe.secrets["sasl_plain_password"].reveal() == "geheim"
    assert "geheim" not in " ".join([*found.recipe.command(arena), found.arena_name, repr(found), repr(found.recipe)])
    assert settings(**LOGIN, password="env:OTHER").recipe.secrets == {}


def test_a_delivery_timeout_counts_all_time_and_the_request_timeout_fits_into_it() -> None:
    sender = settings(timeout=20).sender
    assert (sender["delivery_timeout_counts"], sender["linger_ms"], sender["request_timeout_ms"]) == ("always", 5, 15)
    assert settings(timeout=1).sender["request_timeout_ms"] == 1
    assert "delivery_timeout_counts" not in settings().sender
    assert (
        settings(timeout=60_000, shmaccum_delivery_timeout_counts="deliverable").sender["request_timeout_ms"] == 30_000
    )


def test_a_wrong_value_is_reported_by_its_table() -> None:
    with pytest.raises(InvalidArgumentError, match="delivery_timeout_ms"):
        settings(timeout="soon")
    with pytest.raises(InvalidArgumentError, match="acks"):
        settings(acks="most")


def test_idempotence_that_was_not_requested_gives_way() -> None:
    assert settings(acks="1").sender["enable_idempotence"] is False
    assert settings(shmaccum_retries=0).sender["enable_idempotence"] is False
    assert "enable_idempotence" not in settings(acks="all").sender
    with pytest.raises(InvalidArgumentError, match="enable_idempotence needs acks=all"):
        settings(acks="1", shmaccum_enable_idempotence=True)


def test_no_batch_is_larger_than_the_largest_record() -> None:
    assert settings(size=1000).arena["batch_size"] == 1000
    assert "batch_size" not in settings(size="1MiB").arena
