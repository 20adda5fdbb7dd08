# SPDX-License-Identifier: Apache-2.0
"""The table of all requests that the server answers: api key, versions, handler, and the rule of its rights.

Produce is advertised from version 0 on, even by a read-only server, because librdkafka detects record format 2 by the
versions of Produce and Fetch. Produce below version 3 is still rejected, because its records have an older format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server import access, read_only
from shmaccum.log.server.call import Handler, Values
from shmaccum.log.server.cluster import Cluster
from shmaccum.log.server.consumer_requests import ConsumerRequests
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.fetch import FetchHandler
from shmaccum.log.server.group_requests import GroupRequests
from shmaccum.log.server.list_offsets import OffsetLookup
from shmaccum.log.server.login_requests import LoginRequests
from shmaccum.log.server.offset_requests import OffsetRequests
from shmaccum.log.server.placement import Placement
from shmaccum.log.server.produce import ProduceHandler
from shmaccum.log.server.settings import ServerSettings
from shmaccum.log.server.topic_requests import TopicRequests
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.transaction_coordinator import TransactionCoordinator

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
PRODUCE_VERSION_MIN = 3
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
BEFORE_LOGIN = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
"""The requests that are allowed before login."""


class RequestType(NamedTuple):
    """A row of the table."""

    version_min: int
    version_max: int
    handler: Handler
    rule: access.Rule = access.administrators


class WriteHandlers(NamedTuple):
    """The handlers of a writable server."""

    produce: ProduceHandler
    topics: TopicRequests
    transactions: TransactionCoordinator


def request_table(
    topics: LogTopics,
    fetches: FetchHandler,
    coordinator: Coordinator,
    cluster: Cluster,
    settings: ServerSettings,
    write_handlers: WriteHandlers | None,
    logins: LoginRequests | None,
) -> dict[int, RequestType]:
    """Return the request types by api key.

    Args:
        topics: the topics that the server serves.
        fetches: handles the fetches.
        coordinator: the coordinator of the groups.
        cluster: the node.
        settings: the settings of topics and of the node.
        write_handlers: the handlers of a writable server. None if the server is read-only.
        logins: handles logins. None if no login is required.
    """
    placement, offsets = Placement(topics), OffsetLookup(topics)
    groups, commits = GroupRequests(coordinator), OffsetRequests(coordinator)
    consumers = ConsumerRequests(coordinator, topics)
    table = {
        FETCH: RequestType(4, 17, fetches.handle, access.unrestricted),  # see `access.readable`
        2: RequestType(1, 10, offsets.list, access.list_offsets),
        3: RequestType(0, 13, cluster.metadata, access.metadata),
        8: RequestType(2, 9, commits.commit, access.offset_commit),
        9: RequestType(1, 9, commits.fetch, access.offset_fetch),
        10: RequestType(0, 6, cluster.find_coordinator, access.find_coordinator),
        11: RequestType(0, 9, groups.join, access.join_group),
        12: RequestType(0, 4, groups.heartbeat, access.heartbeat),
        13: RequestType(0, 5, groups.leave, access.leave_group),
        14: RequestType(0, 5, groups.sync, access.sync_group),
        15: RequestType(0, 6, groups.describe, access.describe_groups),
        16: RequestType(0, 5, groups.list, access.list_groups),
        23: RequestType(2, 4, offsets.of_leader_epochs, access.offset_for_leader_epoch),
        32: RequestType(1, 4, settings.describe, access.describe_settings),
        34: RequestType(1, 2, placement.alter_log_dirs, access.alter_log_dirs),
        35: RequestType(1, 4, placement.describe_log_dirs, access.describe_log_dirs),
        42: RequestType(0, 2, groups.delete, access.delete_groups),
        43: RequestType(1, 2, placement.elect_leaders, access.elect_leaders),
        45: RequestType(0, 1, placement.alter_reassignments, access.alter_reassignments),
        46: RequestType(0, 0, placement.list_reassignments, access.list_reassignments),
        47: RequestType(0, 0, commits.delete, access.offset_delete),
        60: RequestType(0, 2, cluster.describe_cluster, access.unrestricted),
        68: RequestType(0, 1, consumers.heartbeat, access.consumer_heartbeat),
        69: RequestType(0, 1, consumers.describe, access.describe_consumer_groups),
        74: RequestType(0, 1, settings.list_resources, access.list_resources),
        75: RequestType(0, 0, cluster.describe_topic_partitions, access.metadata),
    }
    if write_handlers is None:
        table |= _read_only_rows()
    else:
        table |= _write_rows(write_handlers, settings)
    if logins is not None:
        table[SASL_HANDSHAKE] = RequestType(0, 1, logins.handshake, access.unrestricted)
        table[SASL_AUTHENTICATE] = RequestType(0, 2, logins.authenticate, access.unrestricted)
    table[API_VERSIONS] = RequestType(0, 4, lambda _call: api_versions(table), access.unrestricted)
    return table


def _write_rows(write_handlers: WriteHandlers, settings: ServerSettings) -> dict[int, RequestType]:
    topics, transactions = write_handlers.topics, write_handlers.transactions
    return {
        PRODUCE: RequestType(0, 13, write_handlers.produce.handle, access.produce),
        19: RequestType(2, 7, topics.create_topics, access.create_topics),
        20: RequestType(1, 6, topics.delete_topics, access.delete_topics),
        21: RequestType(0, 2, topics.delete_records, access.delete_records),
        22: RequestType(0, 5, transactions.init_producer_id, access.init_producer_id),
        24: RequestType(0, 3, transactions.add_partitions, access.add_partitions),
        25: RequestType(0, 4, transactions.add_offsets, access.add_offsets),
        26: RequestType(0, 4, transactions.end, access.end_transaction),
        28: RequestType(0, 4, transactions.commit_offsets, access.commit_offsets),
        33: RequestType(0, 2, settings.alter, access.alter_settings),
        37: RequestType(0, 3, topics.create_partitions, access.create_partitions),
        44: RequestType(0, 1, settings.alter_incrementally, access.alter_settings),
        61: RequestType(0, 0, transactions.describe_producers, access.describe_producers),
        65: RequestType(0, 0, transactions.describe, access.describe_transactions),
        66: RequestType(0, 1, transactions.list, access.list_transactions),
    }


def _read_only_rows() -> dict[int, RequestType]:
    return {
        PRODUCE: RequestType(0, 13, read_only.produce, access.produce),
        19: RequestType(2, 7, read_only.create_topics, access.create_topics),
        20: RequestType(1, 6, read_only.delete_topics, access.delete_topics),
        21: RequestType(0, 2, read_only.delete_records, access.delete_records),
        22: RequestType(0, 5, read_only.init_producer_id, access.init_producer_id),
        33: RequestType(0, 2, read_only.alter_settings, access.alter_settings),
        37: RequestType(0, 3, read_only.create_partitions, access.create_partitions),
        44: RequestType(0, 1, read_only.alter_settings, access.alter_settings),
    }


def api_versions(table: Mapping[int, RequestType]) -> Values:
    """Return the response to ApiVersions."""
    keys = [
        {"api_key": key, "min_version": row.version_min, "max_version": row.version_max}
        for key, row in sorted(table.items())
    ]
    return {"error_code": BrokerError.NONE, "api_keys": keys}
