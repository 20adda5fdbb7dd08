# SPDX-License-Identifier: Apache-2.0
"""kafka-python, wrapped: connections, bootstrap, metadata, versions, TLS, SASL, reconnect backoff, throttling.

The package is imported without its clients (`kafka_package`). This folder uses more than the library promises, and
stands on these parts::

    loop          NetworkSelector         one round of it per `Client.poll`, in the caller's thread; a task watches the
                                          doorbell; `register_event` and `unregister_event` are overridden to be
                                          cheaper; a reader that comes again stays registered (`wait_readable`);
                                          its own selector is ours, which times waits
    connections   KafkaConnectionManager  `_build_transport` and `_connect` are overridden: our transports, name
                                          lookups in a thread, a pause also after a login that failed
                  KafkaConnection         `_maybe_throttle` has a limit (`Throttle`)
    metadata      ClusterMetadata         `update_metadata` is overridden to remember the error of each topic, and
                                          newer leaders
    frames        KafkaConnection         `in_flight_requests`, and its parser's: a Produce request puts itself there
                                          (`Sent`), and has one timer per connection (`Timer`) instead of its own
    transport     KafkaTCPTransport       `write` and `_sock_send` are overridden: frames are written by sendmsg, at
                                          once if possible; `_read_from_sock`: an answer to Produce that came whole
                                          does not go through the parser; each call that moves bytes counts
                  KafkaSSLTransport       the same, a record of TLS at a time: gathering and encrypting are copies
    login         KafkaSSLTransport       `_build_ssl_context`, once at the start
    failures      its exceptions          as Kafka's numbers, and as sentences
    lookup        getaddrinfo             names of hosts are looked up in threads
    transaction_messages                  requests of transactions as its messages, and its messages as answers

`client` is what the rest of the house sees: `Client` and its `Outcome`.

The rule that all of it serves: the arena's bytes are read by the kernel inside `sendmsg` and by nobody afterwards. A
request forgets its buffers when its last byte was taken or its connection is closed; only then an `Outcome` tells of
it. Before its first byte is taken it can be replaced by another one, which keeps its place in all queues, or withdrawn
from them; then there is no `Outcome`.
"""

from shmaccum.common.kafka_package import import_without_clients
from shmaccum.common.packages import needed

with needed("kafka-python", "kafka", "the sink kafka: needs"):
    for _package in ("kafka", "kafka.protocol.admin", "kafka.protocol.consumer", "kafka.protocol.producer"):
        import_without_clients(_package)
