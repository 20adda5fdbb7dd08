# SPDX-License-Identifier: Apache-2.0
"""Run one or more KRaft brokers of Apache Kafka on loopback ports, and stop, kill and restart them."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.kafka.distribution import TEST_JVM, java_command, run_tool
from tests.support.processes import wait_until

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 120.0
REQUEST_TIMEOUT_S = 120.0
LOOPBACK = "127.0.0.1"
LOGIN_MODULES = "org.apache.kafka.common.security"
LISTENERS: Mapping[str, str] = {
    "PLAINTEXT": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
}
"""The security protocol of each listener."""
CLUSTER_ID = "c2htYWNjdW0gdGVzdHMhIQ"

BROKER_PROPERTIES: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "6",
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.retry.backoff.ms": "200",
    "log.cleaner.enable": "false",
    # Disable retention: tests append records that are years old.
    "log.retention.ms": "-1",
    # With a short session, another leader serves soon after a broker was killed.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "5000",
}


def free_port() -> int:
    """A free loopback port."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def held_port(port: int = 0) -> socket.socket:
    """Reserve a loopback port. Only a server that gets its number can listen on it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((LOOPBACK, port))
    return held


SECURE_PROPERTIES: Mapping[str, str] = {
    "ssl.keystore.type": "PEM",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
    "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
        f'{LOGIN_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    ),
    "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{LOGIN_MODULES}.scram.ScramLoginModule required;",
    "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{LOGIN_MODULES}.scram.ScramLoginModule required;",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
}


class Broker:
    """One process of Kafka, broker and controller in one.

    Attributes:
        node_id: from 1.
        port: the port of its PLAINTEXT listener.
        secure_port: the port of its SASL_SSL or SASL_PLAINTEXT listener, or None.
        secure_host: the host name of that listener. Tickets are not issued for addresses.
        process: the running JVM, or None while it is stopped.
    """

    def __init__(self, node_id: int, directory: Path, jvm: Sequence[str]) -> None:
        self.node_id = node_id
        self.directory = directory
        self._jvm = jvm
        self._held = [held_port() for _ in range(3)]
        self.port, self.controller_port, self.secure_port = (held.getsockname()[1] for held in self._held)
        self.secure_host = LOOPBACK
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log_directory(self) -> Path:
        """The folder of its topic-partitions."""
        return self.directory / "log"

    def configure(self, voters: str, properties: Mapping[str, str]) -> None:
        """Writes its configuration and formats its log directory."""
        self.log_directory.mkdir(parents=True)
        listeners = f"PLAINTEXT://{LOOPBACK}:{self.port}"
        if "ssl.keystore.location" in properties:
            listeners += f",SASL_SSL://{self.secure_host}:{self.secure_port}"
        elif "sasl.enabled.mechanisms" in properties:
            self.secure_host = "localhost"
            listeners += f",SASL_PLAINTEXT://{self.secure_host}:{self.secure_port}"
        own = {
            "node.id": str(self.node_id),
            "controller.quorum.voters": voters,
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{self.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": ",".join(f"{name}:{spoken}" for name, spoken in LISTENERS.items()),
            "log.dirs": str(self.log_directory),
        }
        self._write("server.properties", {**BROKER_PROPERTIES, **own, **properties})
        # StorageTool would need a JVM to write this.
        identity = {"version": "1", "node.id": str(self.node_id), "cluster.id": CLUSTER_ID}
        directory_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._write("log/meta.properties", {**identity, "directory.id": directory_id})

    def _write(self, name: str, properties: Mapping[str, str]) -> None:
        lines = [f"{key}={value}\n" for key, value in properties.items()]
        (self.directory / name).write_text("".join(lines))

    def start(self) -> None:
        """Starts the JVM; `Cluster.wait_until_up` waits until it serves."""
        command = java_command("kafka.Kafka", str(self.directory / "server.properties"), jvm=self._jvm)
        command.insert(1, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        with open(self.directory / "output", "ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.directory)

    def stop(self) -> None:
        """Stops cleanly. If there are other brokers, its partitions move to them first."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the JVM."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def remove(self) -> None:
        """Kills the JVM, frees its ports and deletes its files."""
        self.kill()
        for held in self._held:
            held.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(self.directory)

    def output(self) -> str:
        """Return the last part of its output."""
        return (self.directory / "output").read_text(errors="replace")[-4000:]


class Cluster:
    """Brokers that know each other.

    Args:
        directory: the folder for their configuration and logs.
        broker_count: each of them votes.
        properties: additional properties of every broker.
        jvm: options of each JVM.
    """

    def __init__(
        self,
        directory: Path,
        broker_count: int = 1,
        properties: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (),
    ) -> None:
        self.brokers = [Broker(index + 1, directory / f"broker-{index + 1}", jvm) for index in range(broker_count)]
        voters = ",".join(f"{broker.node_id}@{LOOPBACK}:{broker.controller_port}" for broker in self.brokers)
        for broker in self.brokers:
            broker.configure(voters, properties or {})

    @property
    def bootstrap(self) -> str:
        """host:port of every broker."""
        return ",".join(f"{LOOPBACK}:{broker.port}" for broker in self.brokers)

    @property
    def secure_bootstrap(self) -> str:
        """host:port of every SASL listener."""
        return ",".join(f"{broker.secure_host}:{broker.secure_port}" for broker in self.brokers)

    def start(self) -> None:
        """Starts stopped brokers and waits until every broker serves."""
        for broker in self.brokers:
            if broker.process is None:
                broker.start()
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until every broker knows every running broker."""
        deadline = time.monotonic() + START_TIMEOUT_S
        running = [broker for broker in self.brokers if broker.process is not None]
        for broker in running:
            while not self._knows(broker, len(running)):
                assert broker.process is not None
                assert broker.process.poll() is None, broker.output()
                assert time.monotonic() < deadline, broker.output()

    @staticmethod
    def _knows(broker: Broker, count: int) -> bool:
        try:
            with socket.create_connection((LOOPBACK, broker.port), timeout=1):
                pass
            metadata = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{broker.port}", "log_level": 0}).list_topics(
                timeout=2
            )
        except (OSError, KafkaException):
            time.sleep(0.05)
            return False
        return len(metadata.brokers) == count

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, topic: str, partition_count: int, replication_factor: int = 1, **config: str) -> None:
        """Creates a topic and waits for its leaders. Names in `config` have underscores instead of dots."""
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(topic, partition_count, replication_factor, config=dotted)
        admin = self.admin()  # ends its requests when it is collected
        admin.create_topics([new])[topic].result(REQUEST_TIMEOUT_S)
        partitions = [TopicPartition(topic, partition) for partition in range(partition_count)]
        wait_until(lambda: self._are_led(admin, partitions), f"{topic} has leaders")

    def set_transaction_version(self, number: int) -> None:
        """Sets the feature transaction.version. With 2, brokers add partitions themselves (KIP-890).

        Kafka's lowest level is 0, for which its producers behave as for 1.
        """
        way = "upgrade" if number == 2 else "downgrade"
        feature = ["--feature", f"transaction.version={number if number == 2 else 0}"]
        run_tool("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", self.bootstrap, way, *feature)

    def leader(self, topic: str, partition: int = 0) -> Broker | None:
        """The leader of a partition, or None while it has none."""
        admin = self.admin()  # ends its requests when it is collected
        node_id = admin.list_topics(topic, REQUEST_TIMEOUT_S).topics[topic].partitions[partition].leader
        return next((broker for broker in self.brokers if broker.node_id == node_id), None)

    @staticmethod
    def _are_led(admin: AdminClient, partitions: Sequence[TopicPartition]) -> bool:
        """Ask the new leaders, which may not know of it yet."""
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        try:
            for found in admin.list_offsets(dict.fromkeys(partitions, newest)).values():
                found.result(REQUEST_TIMEOUT_S)
        except KafkaException:
            return False
        return True

    def stop(self) -> None:
        """Ends every broker and deletes what they wrote."""
        for broker in self.brokers:
            broker.remove()


@contextlib.contextmanager
def running_cluster(
    directory: Path,
    broker_count: int = 1,
    properties: Mapping[str, str] | None = None,
    jvm: Sequence[str] = (),
) -> Iterator[Cluster]:
    """A running cluster, which stops when the context ends."""
    cluster = Cluster(directory / f"kafka-{os.getpid()}-{uuid.uuid4().hex[:8]}", broker_count, properties, jvm)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def archive_classes(archive: Path) -> None:
    """Starts and stops a broker whose JVM archives its classes. The archive appears whole or not at all.

    Raises:
        AssertionError: the broker does not start, or its JVM did not exit.
        OSError: the archive cannot be written.
    """
    unfinished = archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    jvm = (*TEST_JVM, f"-XX:ArchiveClassesAtExit={unfinished}", "-Xlog:cds*=off")
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder), jvm=jvm) as cluster:
        cluster.create_topic("archived", 1)
        (broker,) = cluster.brokers
        process = broker.process
        broker.stop()
        assert process is not None
        assert process.returncode != -signal.SIGKILL, f"half of {unfinished} may be missing"
    unfinished.rename(archive)
