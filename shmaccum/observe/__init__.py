# SPDX-License-Identifier: Apache-2.0
"""Observing: facts of a live arena, a look into one that may be damaged, and Prometheus.

::

    observation    typed facts of an arena at this moment   ─ limited_topics   topics that may hold no more buffers
    resources      CPU and memory of processes, from psutil
    inspection     slots taken apart, records decoded, batches exported
    host           the arenas of this host
    health         troubles as sentences, and the answers to probes
    prometheus     the facts as metrics
    server         HTTP: metrics, probes, and the page   ─ picture   the document behind the page
"""
