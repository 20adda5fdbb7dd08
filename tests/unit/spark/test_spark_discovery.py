# SPDX-License-Identifier: Apache-2.0
"""Spark finds the data source in an installed package, and an import of it never raises."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

from setup import ROOT

WITHOUT_PYSPARK = """
import sys
sys.modules["pyspark"] = None
import pyspark_shmaccum
print(hasattr(pyspark_shmaccum, "DefaultSource"))
"""


def test_what_is_installed_has_a_top_level_package_for_spark(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "egg_info", f"--egg-base={tmp_path}", "build_py"]
    subprocess.run([*command, f"--build-lib={tmp_path / 'lib'}"], cwd=ROOT, check=True, capture_output=True)
    found = {module.name for module in pkgutil.iter_modules([str(tmp_path / "lib")])}
    assert found == {"pyspark_shmaccum", "shmaccum"}
    assert (tmp_path / "lib" / "shmaccum" / "py.typed").exists()
    assert (tmp_path / "lib" / "shmaccum" / "spark" / "data_source.py").exists()


def test_importing_what_spark_looks_for_never_raises() -> None:
    result = subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr


def test_the_package_can_be_imported_without_pyspark() -> None:
    program = WITHOUT_PYSPARK.replace("pyspark_shmaccum", "shmaccum.spark").replace("DefaultSource", "register")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
