# SPDX-License-Identifier: Apache-2.0
"""The rights that each request needs, and Kafka's response to a principal who lacks them.

::

    request ──> rule of its row ──> the allowed part of the request ──> its handler
                       └─────────── the rest: TOPIC, GROUP or CLUSTER_AUTHORIZATION_FAILED, added to the response

A rule works on the decoded message, so handlers do not check rights. Fetch uses `readable` instead, because its frame
is decoded in C. A row without a rule is for administrators only, so that no new API is open by mistake.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.call import Call, Handler, Result, Values
from shmaccum.log.server.consumer_requests import described_values, refusal_values
from shmaccum.log.server.group import JoinAnswer, SyncAnswer
from shmaccum.log.server.messages import BadFrameError
from shmaccum.log.server.produce import refused_topic
from shmaccum.log.server.topic_requests import CREATED_NOT
from shmaccum.log.server.topics import NO_TOPIC_ID, LogTopics, TopicKey
from shmaccum.log.server.transaction_coordinator import added_values, described_transaction
from shmaccum.log.server.users import ANONYMOUS, Right, User

TOPIC_REFUSED = BrokerError.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = BrokerError.GROUP_AUTHORIZATION_FAILED
CLUSTER_REFUSED = BrokerError.CLUSTER_AUTHORIZATION_FAILED
TOPIC_RESOURCE = 2
NOT_ADMINISTERED = "this principal does not administer the topic"
ID_REFUSED = BrokerError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
KINDS_OF_KEYS = {0: ("group", GROUP_REFUSED), 1: ("transactional-id", ID_REFUSED)}
"""For FindCoordinator: the kind of resource of a key, and the error for a principal who may not see it."""

SEVERAL_KEYS_VERSION = 4
"""From this version of FindCoordinator on, a request may have several keys."""

Rule = Callable[[Call, Handler, LogTopics], Result]
"""Calls the handler with the allowed part of the request, or rejects the request."""
Test = Callable[[User, str], bool]


def sees(kind: str) -> Test:
    """Return a test for any right on the resource."""
    return lambda user, name: user.sees(kind, name)


def may(right: Right, kind: str) -> Test:
    """Return a test for this right on the resource."""
    return lambda user, name: user.may(right, kind, name)


def readable(user: User, topic: TopicKey, topics: LogTopics) -> bool:
    """Return whether the principal may fetch a topic. An unknown id is left to the handler."""
    if user is ANONYMOUS:
        return True
    name = topics.name_of_key(topic)
    return name is None or user.may(Right.READ, "topic", name)


# --- rules


def unrestricted(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    """Require no right."""
    return handler(call)


def administrators(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    if not call.user.is_administrator:
        raise BadFrameError(f"{call.user.name} is not an administrator, as request {call.request.api_key} requires")
    return handler(call)


def _whole(is_allowed: Callable[[Call], bool], answer: Callable[[Call], Values]) -> Rule:
    """Return a rule that passes or rejects the whole request."""

    def rule(call: Call, handler: Handler, _topics: LogTopics) -> Result:
        if is_allowed(call):
            return handler(call)
        return answer(call)

    return rule


def _administrator(values: Values) -> Rule:
    """Return a rule for administrators. The values are those of the error response."""
    return _whole(lambda call: call.user.is_administrator, lambda _call: {**values, "error_code": CLUSTER_REFUSED})


def _rule_for_each(
    field: str, answered: str, is_allowed: Callable[[Call, Any, LogTopics], bool], refused: Callable[[Any], Any]
) -> Rule:
    """Return a rule that removes the elements for which the principal lacks a right.

    Args:
        field: the field of the request.
        answered: the field of the response with one element for each of them.
        is_allowed: tests one element.
        refused: makes the element of the response for a rejected element.
    """

    def rule(call: Call, handler: Handler, topics: LogTopics) -> Result:
        tested = [(each, is_allowed(call, each, topics)) for each in getattr(call.message, field) or []]
        lost = [refused(each) for each, is_right in tested if not is_right]
        if lost:
            setattr(call.message, field, [each for each, is_right in tested if is_right])
            call.amend(lambda values: {**values, answered: [*values[answered], *lost]})
        return handler(call)

    return rule


def _name_of(element: Any, topics: LogTopics) -> str | None:
    """Return the topic that an element of a request refers to by name or id."""
    if isinstance(element, str):
        return element
    name: str | None = getattr(element, "name", None)
    topic_id = getattr(element, "topic_id", None)
    return topics.name_of(topic_id) if not name and topic_id not in {None, NO_TOPIC_ID} else name


def _topic(test: Test) -> Callable[[Call, Any, LogTopics], bool]:
    """Return a test of an element that refers to a topic. An unknown id passes, and its handler reports it."""

    def is_allowed(call: Call, element: Any, topics: LogTopics) -> bool:
        name = _name_of(element, topics)
        return name is None or test(call.user, name)

    return is_allowed


def _named(test: Test) -> Callable[[Call, Any, LogTopics], bool]:
    """Return a test of an element that is a name."""
    return lambda call, name, _topics: test(call.user, name)


# --- topics


def _partitions(topic: Any, error: BrokerError = TOPIC_REFUSED, **values: Any) -> Values:
    """Return a topic of a response with an error for each partition."""
    partitions = [{"partition_index": each.partition_index, "error_code": error, **values} for each in topic.partitions]
    return {"name": topic.name, "partitions": partitions}


def _refused_epochs(topic: Any) -> Values:
    partitions = [
        {"error_code": TOPIC_REFUSED, "partition": each.partition, "leader_epoch": -1, "end_offset": -1}
        for each in topic.partitions
    ]
    return {"topic": topic.topic, "partitions": partitions}


def _refused_topic(topic: Any) -> Values:
    name, topic_id = (topic, NO_TOPIC_ID) if isinstance(topic, str) else (topic.name, getattr(topic, "topic_id", None))
    return {
        "name": name,
        "topic_id": topic_id or NO_TOPIC_ID,
        "error_code": TOPIC_REFUSED,
        "error_message": NOT_ADMINISTERED,
    }


def _refused_moves(call: Call) -> Values:
    """Reject AlterReplicaLogDirs, whose response has no error for the whole request."""
    results = [
        {
            "topic_name": topic.name,
            "partitions": [{"partition_index": one, "error_code": CLUSTER_REFUSED} for one in topic.partitions],
        }
        for each in call.message.dirs
        for topic in each.topics
    ]
    return {"results": results}


def delete_topics(call: Call, handler: Handler, topics: LogTopics) -> Result:
    field = "topics" if call.version >= 6 else "topic_names"
    return _rule_for_each(field, "responses", _topic(may(Right.ADMIN, "topic")), _refused_topic)(call, handler, topics)


def metadata(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    """Metadata: a topic that the principal may not see is omitted, or rejected if the request names it."""
    is_for_all = not call.message.topics
    names = {each.name for each in call.message.topics or ()}

    def seen(topic: Values) -> Values | None:
        if topic["name"] is None or call.user.sees("topic", topic["name"]):
            return topic
        by_name = topic["name"] in names
        error = TOPIC_REFUSED if by_name else BrokerError.UNKNOWN_TOPIC_ID
        hidden: Values = {"error_code": error, "name": topic["name"] if by_name else None, "partitions": []}
        return None if is_for_all else {**hidden, "topic_id": NO_TOPIC_ID if by_name else topic["topic_id"]}

    call.amend(lambda values: {**values, "topics": [one for each in values["topics"] if (one := seen(each))]})
    return handler(call)


def _resources(right_of: Callable[[User, str], bool], answered: str) -> Rule:
    """Return a rule for settings: those of a topic need a right on it, those of the server an administrator."""

    def is_allowed(call: Call, resource: Any, _topics: LogTopics) -> bool:
        if resource.resource_type == TOPIC_RESOURCE:
            return right_of(call.user, resource.resource_name)
        return call.user.is_administrator

    def refused(resource: Any) -> Values:
        is_topic = resource.resource_type == TOPIC_RESOURCE
        return {
            "error_code": TOPIC_REFUSED if is_topic else CLUSTER_REFUSED,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            **({"configs": []} if answered == "results" else {}),
        }

    return _rule_for_each("resources", answered, is_allowed, refused)


# --- groups


def _member(refusal: Values) -> Rule:
    """Return a rule for requests of group members."""
    return _whole(lambda call: call.user.may(Right.READ, "group", call.message.group_id), lambda _call: refusal)


def offset_commit(call: Call, handler: Handler, topics: LogTopics) -> Result:
    """OffsetCommit: the right to read the group and each topic."""
    if call.user.may(Right.READ, "group", call.message.group_id):
        return _rule_for_each("topics", "topics", _topic(may(Right.READ, "topic")), _partitions)(call, handler, topics)
    return {"topics": [_partitions(topic, GROUP_REFUSED) for topic in call.message.topics]}


def offset_fetch(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    """OffsetFetch: offsets of visible topics and groups."""
    call.amend(functools.partial(_seen_offsets, call))
    return handler(call)


def _seen_offsets(call: Call, values: Values) -> Values:
    if "groups" in values:
        asked = {group.group_id: group.topics for group in call.message.groups}
        groups = [_seen_group(call.user, one["group_id"], one, asked[one["group_id"]]) for one in values["groups"]]
        return {**values, "groups": groups}
    return _seen_group(call.user, call.message.group_id, values, call.message.topics)


def _seen_group(user: User, name: str, group: Values, asked: Sequence[Any] | None) -> Values:
    """Return the offsets of one group. Invisible topics are omitted, or rejected if the request names them."""
    if not user.sees("group", name):
        return {**group, "topics": [], "error_code": GROUP_REFUSED}
    nothing = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": "", "error_code": TOPIC_REFUSED}
    topics = [
        topic
        if user.sees("topic", topic["name"])
        else {**topic, "partitions": [{**each, **nothing} for each in topic["partitions"]]}
        for topic in group["topics"]
        if asked is not None or user.sees("topic", topic["name"])
    ]
    return {**group, "topics": topics}


def find_coordinator(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    """FindCoordinator: the principal must see the group or transactional id."""
    kind, refusal = KINDS_OF_KEYS.get(call.message.key_type, ("", GROUP_REFUSED))

    def seen(one: Values, key: str) -> Values:
        is_seen = not kind or call.user.sees(kind, key)
        return one if is_seen else {**one, "error_code": refusal, "node_id": -1, "host": "", "port": -1}

    def amended(values: Values) -> Values:
        if call.version >= SEVERAL_KEYS_VERSION:
            return {**values, "coordinators": [seen(each, each["key"]) for each in values["coordinators"]]}
        return seen(values, call.message.key)

    call.amend(amended)
    return handler(call)


def consumer_heartbeat(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    """ConsumerGroupHeartbeat: the right to read the group, and to see each subscribed topic."""
    names = call.message.subscribed_topic_names or ()
    if not call.user.may(Right.READ, "group", call.message.group_id):
        return refusal_values(GROUP_REFUSED, None)
    if not all(call.user.sees("topic", name) for name in names):
        return refusal_values(TOPIC_REFUSED, None)
    return handler(call)


def list_groups(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    call.amend(
        lambda values: {
            **values,
            "groups": [each for each in values["groups"] if call.user.sees("group", each["group_id"])],
        }
    )
    return handler(call)


def offset_delete(call: Call, handler: Handler, topics: LogTopics) -> Result:
    """OffsetDelete: the right to administer the group, and to read each topic."""
    if call.user.may(Right.ADMIN, "group", call.message.group_id):
        return _rule_for_each("topics", "topics", _topic(may(Right.READ, "topic")), _partitions)(call, handler, topics)
    return {"error_code": GROUP_REFUSED, "topics": []}


# --- transactions


_writable_topics = _rule_for_each(
    "topic_data",
    "responses",
    _topic(may(Right.WRITE, "topic")),
    functools.partial(refused_topic, error=TOPIC_REFUSED),
)


def _has_id(call: Call, name: str | None) -> bool:
    """Return whether the principal may use a transactional id. None needs no right."""
    return name is None or call.user.may(Right.WRITE, "transactional-id", name)


def produce(call: Call, handler: Handler, topics: LogTopics) -> Result:
    """Produce: the right to write each topic, and to use the transactional id."""
    if _has_id(call, call.message.transactional_id):
        return _writable_topics(call, handler, topics)
    return {"responses": [refused_topic(topic, ID_REFUSED) for topic in call.message.topic_data]}


def init_producer_id(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    """InitProducerId: the right to use the transactional id or, without one, to write any topic."""
    name = call.message.transactional_id
    nothing: Values = {"producer_id": -1, "producer_epoch": -1}
    if not _has_id(call, name):
        return {"error_code": ID_REFUSED, **nothing}
    if name is None and not call.user.has(Right.WRITE, "topic"):
        return {"error_code": CLUSTER_REFUSED, **nothing}
    return handler(call)


def add_partitions(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    """AddPartitionsToTxn: the right to use the id and to write each topic. All partitions are added, or none."""
    asked = call.message.v3_and_below_topics
    errors = {topic.name: TOPIC_REFUSED for topic in asked if not call.user.may(Right.WRITE, "topic", topic.name)}
    has_id = _has_id(call, call.message.v3_and_below_transactional_id)
    if has_id and not errors:
        return handler(call)
    rest = BrokerError.OPERATION_NOT_ATTEMPTED
    results = [added_values(topic, {}, errors.get(topic.name, rest) if has_id else ID_REFUSED) for topic in asked]
    return {"results_by_topic_v3_and_below": results}


def add_offsets(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    """AddOffsetsToTxn: the right to use the id, and to read the group."""
    if not _has_id(call, call.message.transactional_id):
        return {"error_code": ID_REFUSED}
    if not call.user.may(Right.READ, "group", call.message.group_id):
        return {"error_code": GROUP_REFUSED}
    return handler(call)


def commit_offsets(call: Call, handler: Handler, topics: LogTopics) -> Result:
    """TxnOffsetCommit: the right to use the id, and to read the group and each topic."""
    if _has_id(call, call.message.transactional_id):
        return offset_commit(call, handler, topics)
    return {"topics": [_partitions(topic, ID_REFUSED) for topic in call.message.topics]}


def list_transactions(call: Call, handler: Handler, _topics: LogTopics) -> Result:
    """ListTransactions: only visible transactional ids."""

    def amended(values: Values) -> Values:
        states = values["transaction_states"]
        seen = [one for one in states if call.user.sees("transactional-id", one["transactional_id"])]
        return {**values, "transaction_states": seen}

    call.amend(amended)
    return handler(call)


_REFUSED_DIRECTORY: Values = {"error_code": CLUSTER_REFUSED, "log_dir": "", "topics": []}
"""The error response of DescribeLogDirs, which has an error for the whole request from version 3 on."""
_ADMINISTERED = _topic(may(Right.ADMIN, "topic"))

# --- rules of one field

list_offsets = _rule_for_each(
    "topics",
    "topics",
    _topic(sees("topic")),
    functools.partial(_partitions, timestamp=-1, offset=-1, leader_epoch=-1),
)
join_group = _member(JoinAnswer(GROUP_REFUSED, "").values)
heartbeat = _member({"error_code": GROUP_REFUSED})
leave_group = _member({"error_code": GROUP_REFUSED, "members": []})
sync_group = _member(SyncAnswer(GROUP_REFUSED).values)
describe_groups = _rule_for_each(
    "groups",
    "groups",
    _named(sees("group")),
    lambda name: {
        "error_code": GROUP_REFUSED,
        "error_message": None,
        "group_id": name,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": set(),
    },
)
create_topics = _rule_for_each(
    "topics", "topics", _ADMINISTERED, lambda topic: {**CREATED_NOT, **_refused_topic(topic)}
)
delete_records = _rule_for_each("topics", "topics", _ADMINISTERED, functools.partial(_partitions, low_watermark=-1))
offset_for_leader_epoch = _rule_for_each(
    "topics", "topics", lambda call, one, _topics: call.user.sees("topic", one.topic), _refused_epochs
)
end_transaction = _whole(
    lambda call: _has_id(call, call.message.transactional_id), lambda _call: {"error_code": ID_REFUSED}
)
describe_settings = _resources(sees("topic"), "results")
alter_settings = _resources(may(Right.ADMIN, "topic"), "responses")
alter_log_dirs = _whole(lambda call: call.user.is_administrator, _refused_moves)
describe_log_dirs = _administrator({"results": [_REFUSED_DIRECTORY]})
create_partitions = _rule_for_each(
    "topics",
    "results",
    _ADMINISTERED,
    lambda topic: {"name": topic.name, "error_code": TOPIC_REFUSED, "error_message": NOT_ADMINISTERED},
)
delete_groups = _rule_for_each(
    "groups_names",
    "results",
    _named(may(Right.ADMIN, "group")),
    lambda name: {"group_id": name, "error_code": GROUP_REFUSED},
)
elect_leaders = _administrator({"replica_election_results": []})
alter_reassignments = _administrator({"error_message": None, "responses": []})
list_reassignments = _administrator({"error_message": None, "topics": []})
describe_producers = _rule_for_each(
    "topics",
    "topics",
    _topic(may(Right.READ, "topic")),
    lambda topic: {
        "name": topic.name,
        "partitions": [
            {"partition_index": one, "error_code": TOPIC_REFUSED, "error_message": None, "active_producers": []}
            for one in topic.partition_indexes
        ],
    },
)
describe_transactions = _rule_for_each(
    "transactional_ids",
    "transaction_states",
    _named(sees("transactional-id")),
    lambda name: described_transaction(name, ID_REFUSED),
)
describe_consumer_groups = _rule_for_each(
    "group_ids",
    "groups",
    _named(sees("group")),
    lambda name: {**described_values(name, None, lambda _id: None), "error_code": GROUP_REFUSED, "error_message": None},
)
list_resources = _administrator({"config_resources": []})
