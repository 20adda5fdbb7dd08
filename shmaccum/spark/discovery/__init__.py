# SPDX-License-Identifier: Apache-2.0
"""Installed as the top-level package ``pyspark_shmaccum``: Spark imports every ``pyspark_*`` and looks for this class.

One such package that raises on import hides all of them from Spark, so this one never raises. Where something is
missing, the package has no class, and `shmaccum.spark.register` tells the reason.
"""

import contextlib

with contextlib.suppress(Exception):
    from shmaccum.spark.data_source import ShmaccumDataSource as DefaultSource  # noqa: F401
