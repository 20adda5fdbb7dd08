# SPDX-License-Identifier: Apache-2.0
"""What the Kafka sink (`shmaccum.sinks.kafka`) is made of.

::

    sinks/kafka.py   the sink: plan, deliver, poll
        ├── topics       which topics there are, and how long to wait for one
        ├── delivery     a Produce request on its way, and what its answer means for each batch
        ├── metrics      of requests and of compression, by Kafka's names
        ├── traffic      of connections and of the loop
        ├── compression  batches in private memory
        ├── produce      its versions, and what its answer says
        ├── errors       the table of broker errors
        └── client       kafka-python, wrapped: the only module that imports it
"""
