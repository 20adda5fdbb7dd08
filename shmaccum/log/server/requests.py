# SPDX-License-Identifier: Apache-2.0
"""The requests that a served log answers, their versions, and the function that answers each.

Produce is advertised from version 0 on and also where it is refused: librdkafka takes a broker for one of format 2 by
Produce and Fetch together. Versions below 3 are refused all the same, because their records have another format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.access import guarded
from shmaccum.log.server.call import Call, Handler, Values
from shmaccum.log.server.cluster import Cluster
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.login import MECHANISMS, LoginError
from shmaccum.log.server.placement import Placement
from shmaccum.log.server.settings import ServerSettings
from shmaccum.log.server.steps import in_steps
from shmaccum.log.server.topics import NO_TOPIC_ID, LogTopics
from shmaccum.log.server.worker import Proof, Worker
from shmaccum.log.server.writing import Writing, topics_to_delete

PRODUCE, FETCH, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 18, 22
PRODUCE_VERSION_MIN = 3
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
FRAMED_TOKENS_VERSION = 1
"""From this version of SaslHandshake on the tokens come in SaslAuthenticate; librdkafka looks for version 0, too."""
BEFORE_LOGIN = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
"""The requests of a client that has still to say who it is."""
READ_ONLY = "this log is served to be read: start shmaccum serve with --writable where no sender writes it"


class RequestRoute(NamedTuple):
    """A request that is answered."""

    version_min: int
    version_max: int
    answer: Handler


def routes(
    cluster: Cluster,
    coordinator: Coordinator,
    placement: Placement,
    settings: ServerSettings,
    writing: Writing | None,
    fetch: Handler,
    more: Mapping[int, RequestRoute] = MappingProxyType({}),
) -> dict[int, RequestRoute]:
    """Api key -> route; those of `more`, too."""
    table = {
        FETCH: RequestRoute(4, 17, fetch),
        2: RequestRoute(1, 10, in_steps(cluster.list_offsets)),
        3: RequestRoute(0, 13, in_steps(cluster.metadata)),
        8: RequestRoute(2, 9, in_steps(coordinator.commit)),
        9: RequestRoute(1, 9, in_steps(coordinator.fetch_offsets)),
        10: RequestRoute(0, 6, cluster.find_coordinator),
        11: RequestRoute(0, 9, coordinator.join),
        12: RequestRoute(0, 4, coordinator.heartbeat),
        13: RequestRoute(0, 5, in_steps(coordinator.leave)),
        14: RequestRoute(0, 5, coordinator.sync),
        15: RequestRoute(0, 6, in_steps(coordinator.describe)),
        16: RequestRoute(0, 5, in_steps(coordinator.list)),
        23: RequestRoute(2, 4, in_steps(cluster.offset_for_leader_epoch)),
        32: RequestRoute(1, 4, in_steps(settings.describe)),
        34: RequestRoute(1, 2, placement.alter_log_dirs),
        35: RequestRoute(1, 4, in_steps(placement.describe_log_dirs)),
        42: RequestRoute(0, 2, in_steps(coordinator.delete)),
        43: RequestRoute(1, 2, placement.elect_leaders),
        45: RequestRoute(0, 1, placement.alter_reassignments),
        46: RequestRoute(0, 0, placement.list_reassignments),
        47: RequestRoute(0, 0, in_steps(coordinator.delete_offsets)),
        60: RequestRoute(0, 2, cluster.describe_cluster),
        68: RequestRoute(0, 1, coordinator.consumer_heartbeat),
        69: RequestRoute(0, 1, in_steps(coordinator.describe_consumer_groups)),
        74: RequestRoute(0, 1, settings.list_resources),
        75: RequestRoute(0, 0, in_steps(cluster.describe_topic_partitions)),
    }
    table |= _refused() if writing is None else _written(writing, settings)
    table |= more
    table[API_VERSIONS] = RequestRoute(0, 4, lambda call: call.answer(api_versions(table)))
    return table


def _written(writing: Writing, settings: ServerSettings) -> dict[int, RequestRoute]:
    transactions = writing.transactions
    return {
        PRODUCE: RequestRoute(0, 13, in_steps(writing.produce)),
        INIT_PRODUCER_ID: RequestRoute(0, 5, in_steps(transactions.init_producer_id)),
        24: RequestRoute(0, 3, in_steps(transactions.add_partitions)),
        25: RequestRoute(0, 4, transactions.add_offsets),
        26: RequestRoute(0, 4, in_steps(transactions.end)),
        28: RequestRoute(0, 4, in_steps(transactions.commit_offsets)),
        61: RequestRoute(0, 0, in_steps(transactions.describe_producers)),
        65: RequestRoute(0, 0, in_steps(transactions.describe)),
        66: RequestRoute(0, 1, transactions.list),
        19: RequestRoute(2, 7, in_steps(writing.create_topics)),
        20: RequestRoute(1, 6, in_steps(writing.delete_topics)),
        21: RequestRoute(0, 2, in_steps(writing.delete_records)),
        33: RequestRoute(0, 2, in_steps(settings.alter)),
        37: RequestRoute(0, 3, in_steps(writing.create_partitions)),
        44: RequestRoute(0, 1, in_steps(settings.alter_incrementally)),
    }


def _refused() -> dict[int, RequestRoute]:
    return {
        PRODUCE: RequestRoute(0, 13, _refuse_produce),
        INIT_PRODUCER_ID: RequestRoute(0, 5, _refuse_producer_id),
        19: RequestRoute(2, 7, _refuse_create),
        20: RequestRoute(1, 6, _refuse_delete),
        21: RequestRoute(0, 2, _refuse_deletion),
        33: RequestRoute(0, 2, _refuse_settings),
        37: RequestRoute(0, 3, _refuse_partitions),
        44: RequestRoute(0, 1, _refuse_settings),
    }


def guarded_routes(table: Mapping[int, RequestRoute], topics: LogTopics) -> dict[int, RequestRoute]:
    """The same routes, each behind the rule of its rights."""
    return {key: route._replace(answer=guarded(key, route.answer, topics)) for key, route in table.items()}


# --- login


def login_routes(hashing: Worker, refuse: Callable[[Call, Values], None]) -> dict[int, RequestRoute]:
    """The requests by which a client logs in.

    Args:
        hashing: computes the hashes of passwords.
        refuse: answers a failed login, late.
    """
    return {
        SASL_HANDSHAKE: RequestRoute(0, 1, _answer_handshake),
        SASL_AUTHENTICATE: RequestRoute(0, 2, lambda call: _take_token(call, hashing, refuse)),
    }


def _answer_handshake(call: Call) -> None:
    """SaslHandshake: chooses a mechanism."""
    login = call.login
    assert login is not None
    error = BrokerError.ILLEGAL_SASL_STATE
    if call.version >= FRAMED_TOKENS_VERSION:
        error = login.begin(call.message.mechanism)
    login.has_failed = error is not BrokerError.NONE
    call.answer({"error_code": error, "mechanisms": list(MECHANISMS)})


def _take_token(call: Call, hashing: Worker, refuse: Callable[[Call, Values], None]) -> None:
    """SaslAuthenticate: one step, which is answered when its hash is computed where it needs one."""
    login = call.login
    assert login is not None

    def answer(step: Callable[[], bytes | Proof]) -> None:
        try:
            content = step()
        except LoginError as error:
            login.has_failed = True
            refuse(call, _failed_login(error))
            return
        if isinstance(content, bytes):
            call.answer({"error_code": BrokerError.NONE, "error_message": None, "auth_bytes": content})
        else:
            hashing.ask(content, lambda is_right: answer(lambda: login.conclude(is_right)))

    answer(lambda: login.step(bytes(call.message.auth_bytes or b"")))


def _failed_login(error: LoginError) -> Values:
    sentence = f"the login failed: {error}"
    return {"error_code": BrokerError.SASL_AUTHENTICATION_FAILED, "error_message": sentence, "auth_bytes": b""}


# --- versions


def api_versions(table: Mapping[int, RequestRoute]) -> Values:
    """The answer to ApiVersions."""
    keys = [
        {"api_key": key, "min_version": route.version_min, "max_version": route.version_max}
        for key, route in sorted(table.items())
    ]
    return {"error_code": BrokerError.NONE, "api_keys": keys}


# --- refusals of a server that only reads


def _refuse_produce(call: Call) -> None:
    def refused(data: Any) -> Values:
        return {
            "index": data.index,
            "error_code": BrokerError.TOPIC_AUTHORIZATION_FAILED,
            "base_offset": -1,
            "log_append_time_ms": -1,
            "log_start_offset": -1,
            "record_errors": [],
            "error_message": READ_ONLY,
        }

    if call.message.acks == 0:
        call.answer_with([])
        return
    responses = [
        {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "partition_responses": [refused(one) for one in topic.partition_data],
        }
        for topic in call.message.topic_data
    ]
    call.answer({"responses": responses})


def _refuse_producer_id(call: Call) -> None:
    call.answer({"error_code": BrokerError.CLUSTER_AUTHORIZATION_FAILED, "producer_id": -1, "producer_epoch": -1})


def _refusal(name: str | None) -> Values:
    return {"name": name, "error_code": BrokerError.CLUSTER_AUTHORIZATION_FAILED, "error_message": READ_ONLY}


def _refuse_create(call: Call) -> None:
    more = {"topic_id": NO_TOPIC_ID, "num_partitions": -1, "replication_factor": -1, "configs": []}
    call.answer({"topics": [{**_refusal(topic.name), **more} for topic in call.message.topics]})


def _refuse_delete(call: Call) -> None:
    asked = topics_to_delete(call)
    call.answer({"responses": [{**_refusal(name), "topic_id": topic_id} for name, topic_id in asked]})


def _refuse_deletion(call: Call) -> None:
    refused = {"low_watermark": -1, "error_code": BrokerError.TOPIC_AUTHORIZATION_FAILED}
    topics = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": one.partition_index, **refused} for one in topic.partitions],
        }
        for topic in call.message.topics
    ]
    call.answer({"topics": topics})


def _refuse_settings(call: Call) -> None:
    refused = {"error_code": BrokerError.CLUSTER_AUTHORIZATION_FAILED, "error_message": READ_ONLY}
    answers = [
        {"resource_type": one.resource_type, "resource_name": one.resource_name, **refused}
        for one in call.message.resources
    ]
    call.answer({"responses": answers})


def _refuse_partitions(call: Call) -> None:
    call.answer({"results": [_refusal(topic.name) for topic in call.message.topics]})
