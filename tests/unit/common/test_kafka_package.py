# SPDX-License-Identifier: Apache-2.0
"""Sink and server import kafka-python without its clients, which other code in the process can still import."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATER = """
import sys
import shmaccum.sender.sinks.kafka.sink
assert "kafka.cluster" in sys.modules
assert "kafka.consumer" not in sys.modules
from kafka import KafkaConsumer, errors
import kafka
assert kafka.KafkaProducer.__module__ == "kafka.producer.kafka"
assert kafka.__version__ and "KafkaAdminClient" in kafka.__all__
assert errors is shmaccum.sender.sinks.kafka.library.client.errors
"""
BEFORE = """
import kafka
before = kafka.KafkaConsumer
import shmaccum.sender.sinks.kafka.sink
assert kafka.KafkaConsumer is before
"""
UNKNOWN = """
import shmaccum.sender.sinks.kafka.sink
import kafka
try:
    kafka.KafkaTeapot
except AttributeError as error:
    assert str(error) == "module 'kafka' has no attribute 'KafkaTeapot'"
else:
    raise AssertionError
"""
SENDER = """
import sys
import shmaccum.sender.__main__, shmaccum.sender.sinks.kafka.sink, shmaccum.sender.sinks.kafka.library.client
unwanted = {
    "kafka.protocol.admin.groups",
    "kafka.protocol.consumer.group",
    "kafka.protocol.producer.transaction",
    "shmaccum.config.server",
    "shmaccum.log.files",
    "numpy",
}
assert not unwanted & sys.modules.keys(), unwanted & sys.modules.keys()
import kafka.protocol.admin, kafka.protocol.producer
alone = kafka.protocol.producer.InitProducerIdRequest
assert (alone.API_KEY, kafka.protocol.producer.InitProducerIdResponse.API_KEY) == (22, 22)
assert kafka.protocol.producer.EndTxnRequest.API_KEY == 26
from kafka.protocol.producer.transaction import InitProducerIdRequest
assert kafka.protocol.producer.InitProducerIdRequest is InitProducerIdRequest is not alone
assert InitProducerIdRequest.json == alone.json
assert kafka.protocol.admin.CreateTopicsRequest.API_KEY == 19
assert kafka.protocol.admin.ListGroupsRequest is sys.modules["kafka.protocol.admin.groups"].ListGroupsRequest
"""
SERVER = """
import sys
import shmaccum.log.server.server
assert "kafka.consumer" not in sys.modules
assert "kafka.protocol.admin.topics" not in sys.modules
import kafka.protocol.admin
assert kafka.protocol.admin.CreateAclsRequest.API_KEY == 30
from kafka.protocol.consumer import JoinGroupRequest
assert JoinGroupRequest is shmaccum.log.server.messages._messages(11).request
from kafka import KafkaAdminClient
"""


@pytest.mark.parametrize(
    "program", [LATER, BEFORE, UNKNOWN, SENDER, SERVER], ids=["later", "before", "unknown", "sender", "server"]
)
def test_a_program_finds_all_of_the_package_whose_clients_we_leave_out(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
