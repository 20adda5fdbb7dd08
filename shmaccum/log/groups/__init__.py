# SPDX-License-Identifier: Apache-2.0
"""Consumer groups of a log: their offsets, and members on the log's host without a server.

::

    offsets_file    committed offsets, of every group               ─ shared_offsets   read once for all members here
    member_locks    living members and the owner of each partition: locks that the kernel frees
    joins           rows of members that no plan has yet
    plan            the published assignment            ─ assignors   the rules that compute it
    membership      one member: it plans, takes, gives up, commits
    members         the members, as other processes see them       ─ stopped   kills a stopped one, if told to
    file_systems    file systems whose locks prove nothing
    frames          frames of a file, found also behind damage
    export          offsets as records of __consumer_offsets, for a broker
"""
