# SPDX-License-Identifier: Apache-2.0
"""The alarms of docs/how-to/prometheus-rules.yml fire when they should, according to Prometheus' promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

from setup import ROOT
from shmaccum.arena import Arena
from shmaccum.observe.prometheus import ArenaCollector, SenderCollector, exposition
from shmaccum.sender import Sender
from shmaccum.sender.sinks.memory import MemorySink

RULES = ROOT / "docs" / "how-to" / "prometheus-rules.yml"
SCENARIOS = Path(__file__).with_name("alarm_rules_test.yml")


def promtool() -> str:
    """The promtool of `make test-tools` or of the system."""
    beside = Path(sys.executable).with_name("promtool")
    found = str(beside) if beside.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool: it is in Debian's package prometheus (make test-tools)")
    return found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool(), *arguments], capture_output=True, text=True)


def judged(rules: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The verdict of promtool on the scenarios with these rules."""
    scenarios = folder / "scenarios.yml"
    scenarios.write_text(SCENARIOS.read_text(encoding="utf-8").replace("RULES", str(rules)), encoding="utf-8")
    return run("test", "rules", str(scenarios))


def test_the_rules_can_be_loaded() -> None:
    result = run("check", "rules", str(RULES))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_alarms_fire_in_their_scenarios(tmp_path: Path) -> None:
    result = judged(RULES, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "expr",
    [
        'up{job="shmaccum"} == 0',
        "absent(shmaccum_sender_alive)",
        "shmaccum_removed == 1",
        "shmaccum_outage_seconds > 60",
        "shmaccum_topic_stuck_seconds > 0",
        "shmaccum_overflow_seconds > 600",
        'shmaccum_processes{state="fallback"} > 0',
    ],
)
def test_the_scenarios_notice_an_alarm_that_cannot_fire(tmp_path: Path, expr: str) -> None:
    text = RULES.read_text(encoding="utf-8")
    assert text.count(f"expr: {expr}\n") == 1
    mutant = tmp_path / "mutant.yml"
    mutant.write_text(text.replace(f"expr: {expr}\n", "expr: shmaccum_sender_alive == 7\n"), encoding="utf-8")
    assert judged(mutant, tmp_path).returncode != 0


def test_each_alarm_links_to_its_row_of_the_page_on_troubleshooting() -> None:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    urls = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in group["rules"]}
    site = metadata("shmaccum").get_all("Project-URL")
    (base,) = (url.partition(", ")[2] for url in site or () if url.startswith("Documentation, "))
    assert urls == {name: f"{base}how-to/troubleshoot.html#{name.lower()}" for name in urls}
    page = (ROOT / "docs" / "how-to" / "troubleshoot.rst").read_text(encoding="utf-8")
    assert re.findall(r"_`(\w+)`", page) == list(urls)


def test_the_rules_name_no_metric_that_does_not_exist(arena: Arena) -> None:
    pytest.importorskip("prometheus_client")
    with Sender(arena, MemorySink()) as sender:
        sender.open()
        told = exposition(ArenaCollector(arena), SenderCollector(arena.name, sender.metrics))
    known = set(re.findall(r"^# HELP (\w+)", told, re.MULTILINE))
    expressions = re.findall(r"expr: (.*)", RULES.read_text(encoding="utf-8"))
    named = set(re.findall(r"\b((?:shmaccum|kafka)_\w+)", " ".join(expressions)))
    assert named
    assert named - known == set()
