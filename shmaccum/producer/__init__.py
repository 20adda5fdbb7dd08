# SPDX-License-Identifier: Apache-2.0
"""The producer serializes a record, chooses its partition, appends it to the arena, and reports its result.

::

    producer        send, send_many, flush, close; a plain record goes from `send` to C at once
    pipeline        user-defined serializers, interceptors and partitioners   ─ serializers, partitioners
    appender        appends and flushes                                       ─ buffer_wait   rare parts of a wait
    delivery        looks results up for futures, and calls callbacks         ─ future        its methods
    deliveries      the results of many records of one call
    loop_results    waits for results in an event loop
    transaction     begin, commit and abort                                   ─ group_offsets   offsets within one
    sender_warning  the warning that no sender delivers
    fallback        the object that gets the records when the arena cannot be used
"""

from shmaccum.producer.producer import Producer

__all__ = ["Producer"]
