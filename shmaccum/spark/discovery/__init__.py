# SPDX-License-Identifier: Apache-2.0
"""Installed as the top-level package ``pyspark_shmaccum``: Spark imports every ``pyspark_*`` and uses this class.

If one of these packages raises on import, Spark loads none of them, so this one never raises. If a dependency is
missing, the package has no class, and `shmaccum.spark.register` raises the reason.
"""

import contextlib

with contextlib.suppress(Exception):
    from shmaccum.spark.data_source import ShmaccumDataSource as DefaultSource  # noqa: F401
