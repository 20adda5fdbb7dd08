# SPDX-License-Identifier: Apache-2.0
"""Consumer groups of a log: their offsets, and members on the log's host without a server.

::

    offsets_file    committed offsets, of every group               ─ shared_offsets   read once for all members here
    member_locks    living members and the owner of each partition: locks that the kernel releases
    joins           rows of members that are not in a plan yet
    plan            the published assignment            ─ assignors   the rules that compute it
    membership      one member: it plans, takes and releases partitions, commits
    members         the members, for other processes                ─ stopped   kills a stopped one, if configured
    file_systems    file systems whose locks do not prove that a process lives
    frames          frames of a file, also after damage
    export          offsets as records of __consumer_offsets, for a broker
"""
