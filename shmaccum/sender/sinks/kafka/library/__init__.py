# SPDX-License-Identifier: Apache-2.0
"""kafka-python, wrapped: connections, bootstrap, metadata, versions, TLS, SASL, reconnect backoff, throttling.

The package is imported without its clients (`kafka_package`). This folder uses internals of the library, and depends on
these parts::

    loop          NetworkSelector         one round of it per `Client.poll`, in the caller's thread; a task watches the
                                          wake fd; `register_event` and `unregister_event` are overridden to be
                                          cheaper; a descriptor that is read repeatedly stays registered
                                          (`wait_readable`); its selector is replaced by one that measures waits
    connections   KafkaConnectionManager  `_build_transport` and `_connect` are overridden: our transports, name
                                          lookups in a thread, and a pause after a failed login, too
                  KafkaConnection         `_maybe_throttle` has a limit (`ConnectionThrottle`)
    metadata      ClusterMetadata         `update_metadata` is overridden to remember the error of each topic, and
                                          newer leaders
    frames        KafkaConnection         `in_flight_requests`, and its parser's: a Produce request adds itself
                                          (`Sent`), and has one timer per connection (`RequestTimer`)
    transport     KafkaTCPTransport       `write` and `_sock_send` are overridden: frames are written by sendmsg, at
                                          once if possible; `_read_from_sock`: a complete Produce response bypasses
                                          the parser; each call that transfers bytes is counted
                  KafkaSSLTransport       the same, one TLS record at a time: gathering and encrypting are copies; the
                                          constructor takes our context
    sessions      SaslReauthenticator     replaces `_reauth` and `_sasl_authenticate` of a connection: the login, its
                                          repetition before the session ends, and their failures
    tokens        AbstractTokenProvider   a token that a thread replaces
    failures      its exceptions          as Kafka's error codes, and as sentences
    lookup        getaddrinfo             names of hosts are looked up in threads
    transaction_messages                  converts requests and responses of transactions

Other folders use only `client`: `Client` and its `ResponseOutcome`.

All of this serves one rule: the kernel reads the arena's bytes inside `sendmsg`, and they are not read afterwards. A
request releases its buffers after its last byte was written or its connection is closed. Only then, a
`ResponseOutcome` reports it. Before its first byte is written, it can be replaced by another request, which keeps its
place in all queues, or withdrawn from them without a `ResponseOutcome`.
"""

from shmaccum.common.kafka_package import import_without_clients
from shmaccum.common.packages import needed

with needed("kafka-python", "kafka", "the sink kafka: needs"):
    for _package in ("kafka", "kafka.protocol.admin", "kafka.protocol.consumer", "kafka.protocol.producer"):
        import_without_clients(_package)
