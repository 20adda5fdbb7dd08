# SPDX-License-Identifier: Apache-2.0
"""Grafana can load docs/how-to/grafana-dashboard.json, which queries only existing metrics."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from setup import ROOT
from shmaccum.arena import Arena
from shmaccum.observe.prometheus import ArenaCollector, SenderCollector, exposition
from shmaccum.sender import Sender
from shmaccum.sender.sinks.memory import MemorySink
from tests.kafka.kafkas_metrics import KAFKAS, LEFT_OUT
from tests.unit.observe.test_alarm_rules import run

FILE = ROOT / "docs" / "how-to" / "grafana-dashboard.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
OF_BROKERS = re.compile(r"kafka_producer_node_\w+")
"""Metrics that only a sender with a broker exports."""


def test_grafana_can_load_it() -> None:
    assert DASHBOARD["uid"] == "shmaccum"
    assert DASHBOARD["schemaVersion"] >= 36
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "arena"}
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) > 8
    for panel in PANELS:
        assert panel["type"] in {"stat", "timeseries"}
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        assert {source["datasource"]["uid"] for source in (panel, *panel["targets"])} == {"${datasource}"}


def test_a_panel_of_one_value_has_the_present_one() -> None:
    """Over a range, Grafana shows the last value of a sender that is dead, and whose metrics ended with it."""
    stats = [panel for panel in PANELS if panel["type"] == "stat"]
    assert len(stats) > 2
    for panel in stats:
        assert [(target["instant"], target["range"]) for target in panel["targets"]] == [(True, False)]
        assert panel["fieldConfig"]["defaults"]["noValue"] == "no metrics"


def cells(place: dict[str, int]) -> set[tuple[int, int]]:
    """The cells of Grafana's grid that a panel covers."""
    columns = range(place["x"], place["x"] + place["w"])
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


def test_no_panel_covers_another_or_is_outside_of_the_grid() -> None:
    taken = [cells(panel["gridPos"]) for panel in PANELS]
    assert len(set().union(*taken)) == sum(map(len, taken))
    assert max(column for column, _ in set().union(*taken)) == 23


def test_it_asks_for_no_metric_that_does_not_exist(arena: Arena) -> None:
    pytest.importorskip("prometheus_client")
    with Sender(arena, MemorySink()) as sender:
        sender.open()
        told = exposition(ArenaCollector(arena), SenderCollector(arena.name, sender.metrics))
    known = set(re.findall(r"^# HELP (\w+)", told, re.MULTILINE))
    named = set(re.findall(r"\b((?:shmaccum|kafka)_\w+)", " ".join(EXPRESSIONS)))
    of_brokers = {name for name in named if OF_BROKERS.fullmatch(name)}
    assert named - known - of_brokers == set()
    ours = KAFKAS["producer-node-metrics"] - LEFT_OUT["producer-node-metrics"]
    assert {name.removeprefix("kafka_producer_node_").replace("_", "-") for name in of_brokers} <= ours


@pytest.mark.parametrize("expression", sorted(set(EXPRESSIONS)))
def test_prometheus_understands_each_expression(expression: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    written = expression.replace("$__rate_interval", "1m").replace("$arena", ".*")
    rules = tmp_path_factory.mktemp("rules") / "rules.yml"
    document = {"groups": [{"name": "panels", "rules": [{"record": "panel", "expr": written}]}]}
    rules.write_text(json.dumps(document), encoding="utf-8")
    judged = run("check", "rules", str(rules))
    assert judged.returncode == 0, judged.stdout + judged.stderr
