# SPDX-License-Identifier: Apache-2.0
"""Observation of arenas: facts of a live arena, inspection of a possibly damaged one, and Prometheus metrics.

::

    observation    typed facts of an arena at one time   ─ limited_topics   topics that may hold no more buffers
    resources      CPU and memory of processes, from psutil
    inspection     decode slots and records, export batches
    host           the arenas on this host
    health         troubles as sentences, and the answers to probes
    prometheus     the facts as metrics
    server         HTTP: metrics, probes and the page   ─ picture   the document for the page
"""
