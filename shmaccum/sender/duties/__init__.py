# SPDX-License-Identifier: Apache-2.0
"""The duties of a sender, in the order in which a round runs them.

::

    maintenance        every 100 ms: cleans up after dead processes, publishes the sender's state for observers
    expiry             advances the delivery clock, and expires batches older than delivery_timeout_ms
    dead_letters       writes a few of the failed batches to the ``dead_letter`` log, if there is one
    transaction_ender  commits or aborts the arena's transaction, if the arena has transactions
    overflow           while the sink does not work, moves batches of a full arena to the overflow, if there is one;
                       when it works, delivers them to the sink
    topics             publishes the partition count of each topic for producers
    batch_sender       delivers ready batches of the arena to the sink
    ack_settler        after the wait: each Ack completes a batch, retries it, or splits it

    checks             once a second: whether the wake-up FIFO, the socket and the server are still at their paths
    duty               the base class, and the objects that all duties share

A duty reports when it is due, whether it was requested, and whether it has work left. From this, the sender computes
how long it may wait (`shmaccum.sender.round_wait`). In a sender without a ``dead_letter`` log, an overflow or
transactions, `Duty` itself, which never has work, takes their places.
"""
