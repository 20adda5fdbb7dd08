# SPDX-License-Identifier: Apache-2.0
"""The machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

from setup import ROOT

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
GIBIBYTE = 1 << 30


def machine() -> dict[str, str]:
    """Return the machine, the revision, the day, and the load before the first round."""
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIBIBYTE:.0f} GiB",
        "kernel": platform.release(),
        "governor": GOVERNOR.read_text().strip() if GOVERNOR.exists() else "not visible",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiler": _first_line("gcc", "--version"),
        "revision": _first_line("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"),
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _cpu() -> str:
    """Return the name of the processor, and whether the machine is virtual."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(models, platform.machine()) + (", virtual" if " hypervisor" in text else "")


def _first_line(*command: str) -> str:
    """Return the first line that a program prints, or "none" if it is missing or prints nothing."""
    if shutil.which(command[0]) is None:
        return "none"
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return output.partition("\n")[0] or "none"
