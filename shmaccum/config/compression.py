# SPDX-License-Identifier: Apache-2.0
"""Options of the sinks that compress batches."""

from __future__ import annotations

from dataclasses import dataclass

from shmaccum.config.option import choice, count
from shmaccum.config.table import Options


@dataclass(frozen=True, kw_only=True)
class CompressionOptions(Options):
    """The codec of a sink and its levels. The table of each sink that compresses inherits these."""

    compression_type: str = choice(
        "none",
        ("none", "gzip", "snappy", "lz4", "zstd"),
        "The codec of the sender's batches. A batch that compression does not make smaller is sent uncompressed.",
    )
    compression_gzip_level: int = count(
        -1, "1 (fast) to 9 (small), or -1 for the default of the library.", minimum=-1, maximum=9
    )
    compression_lz4_level: int = count(
        9,
        "9 selects the fast compressor; every other level of 1 to 17 selects the compressor for small output.",
        maximum=17,
    )
    compression_zstd_level: int = count(3, "-131072 (fast) to 22 (small).", minimum=-131072, maximum=22)
    compression_threads: int = count(2, "The number of threads that compress.", maximum=64)
