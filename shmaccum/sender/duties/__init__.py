# SPDX-License-Identifier: Apache-2.0
"""The duties of a sender, in the order in which a round looks at them.

::

    maintenance     every 100 ms: clears up after dead processes, tells observers how the sender is
    expiry          the delivery clock runs, and batches older than delivery_timeout_ms on it get that result
    dead_letters    a few of the batches that failed are written to the dead-letter log, if there is one
    ending          the transaction of the arena, if it has transactions, is committed or aborted
    overflow        while the sink does not work, batches of a full arena go to the overflow, if there is one;
                    when it works, they go to the sink
    topics          producers are told how many partitions a topic has
    sending         ready batches of the arena go to the sink
    settling        after the rest: each Ack completes a batch, sends it again, or splits it

    checks          once a second: the doorbell, the socket and the server are where others look for them
    duty            a duty, and the objects that all of them share

A duty says when it is due, whether there is news for it, and whether it has anything left to do; so the sender knows
how long it may rest (`shmaccum.sender.resting`). A sender without a dead-letter log, an overflow or transactions has
`Duty` itself in their places, which never has anything to do.
"""
