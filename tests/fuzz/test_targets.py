# SPDX-License-Identifier: Apache-2.0
"""Run the fuzz targets under ASan and UBSan: every stored input, then changed inputs for a second, or with ``-m fuzz``
for SHMACCUM_FUZZ_SECONDS. ``make fuzz`` runs the targets guided by coverage.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.fuzz import targets
from tests.native import c_build
from tests.native.c_build import ASAN
from tests.support.seeds import new_seed

SHORT_SECONDS = 1
LONG_SECONDS = int(os.environ.get("SHMACCUM_FUZZ_SECONDS", "600"))
ROOM_S = 600
EACH = pytest.mark.parametrize("name", targets.NAMES)


@pytest.fixture
def corpus(name: str, tmp_path: Path) -> Path:
    path = tmp_path / "corpus"
    path.write_bytes(targets.corpus_read(name))
    return path


def drive(name: str, *arguments: str | Path) -> int:
    """Run a target, and return the number of inputs. Raise AssertionError with the number of an input that failed."""
    prefix = c_build.runner(ASAN)
    if prefix is None:
        pytest.skip("this compiler has no working runtime for AddressSanitizer")
    if (lack := targets.lack_of(name)) is not None:
        pytest.skip(lack)
    command = [*prefix, str(targets.build(name)), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return int(ended.stdout.split()[0])


@EACH
@pytest.mark.timeout(ROOM_S)
def test_no_kept_input_does_harm(name: str, corpus: Path) -> None:
    assert drive(name, "repeat", corpus) == len(targets.unpack(corpus.read_bytes())) > 0


@EACH
@pytest.mark.timeout(SHORT_SECONDS + ROOM_S)
def test_some_changed_inputs_do_no_harm(name: str, corpus: Path) -> None:
    seed = new_seed()
    assert drive(name, "try", corpus, str(SHORT_SECONDS), str(seed)) > 0


@EACH
@pytest.mark.timeout(ROOM_S)
def test_an_input_is_repeated_by_its_number(name: str, corpus: Path) -> None:
    assert drive(name, "try", corpus, "0", "17") == 1


@EACH
@pytest.mark.fuzz
@pytest.mark.timeout(LONG_SECONDS + ROOM_S)
def test_many_changed_inputs_do_no_harm(name: str, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = new_seed()
    count = drive(name, "try", corpus, str(LONG_SECONDS), str(seed))
    with capsys.disabled():
        print(f"{name}: SHMACCUM_SEED={seed}: {count:,} inputs in {LONG_SECONDS} s")


def test_a_corpus_survives_a_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "HERE", tmp_path)
    inputs = [b"", b"one", bytes(300)]
    targets.corpus_write("new", inputs)
    assert targets.unpack(targets.corpus_read("new")) == sorted(inputs)
    assert targets.corpus_read("unknown") == b""
