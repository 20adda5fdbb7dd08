# SPDX-License-Identifier: Apache-2.0
"""Run every C test program (tests/native/*/NAME_test.c) in each of its variants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from setup import ROOT
from tests.native import c_build
from tests.native.c_build import ASAN, PLAIN, RUN_SECONDS_MAX, TESTS, TSAN, BuildError, Variant

PROGRAMS = sorted(TESTS.glob("*/*_test.c"))
CASES = [
    pytest.param(program, variant, id=f"{program.parent.name}/{program.stem}-{variant.name}")
    for program in PROGRAMS
    for variant in c_build.variants_of(program)
]


def run_program(program: Path, variant: Variant, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Build and run a test program. Skip if this machine lacks the variant's sanitizers."""
    prefix = c_build.runner(variant)
    if prefix is None:
        pytest.skip(f"this compiler has no working runtime for -fsanitize={variant.sanitizers}")
    binary = c_build.build_program(program, variant)
    command = [*prefix, str(binary), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)


@pytest.mark.timeout(c_build.BUILD_AND_RUN_SECONDS_MAX)
@pytest.mark.parametrize(("program", "variant"), CASES)
def test_program(program: Path, variant: Variant) -> None:
    result = run_program(program, variant)
    assert result.returncode == 0, f"{result.stdout}{result.stderr}"


def test_a_program_for_a_debugger_is_built_by_a_command_and_has_lines() -> None:
    command = [sys.executable, "-m", "tests.native.c_build", str(TESTS / "base" / "status_test.c")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
    assert built.returncode == 0, built.stderr
    program = Path(built.stdout.strip())
    assert b".debug_line" in program.read_bytes()
    assert subprocess.run([program], capture_output=True, timeout=RUN_SECONDS_MAX).returncode == 0


def test_a_file_that_is_no_test_is_refused_with_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.native.c_build", str(tmp_path / "absent_test.c")]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
    assert refused.returncode == 1
    assert "cannot be built" in refused.stderr
    assert "Traceback" not in refused.stderr


def plant(name: str, text: str) -> Path:
    """Write a test program of layer base. Its path is always the same, so it is built only once."""
    program = c_build.CACHE / "planted" / "base" / f"{name}_test.c"
    c_build.write_whole(program, text)
    return program


def test_a_failed_expectation_fails_the_program_and_reports_where() -> None:
    program = plant(
        "failing",
        '#include "testing.h"\n'
        "TEST(numbers) { EXPECT_EQ_U64(1 + 1, 3); }\n"
        "TEST(conditions) { EXPECT(1 > 2); }\n"
        "TEST(statuses) { EXPECT_STATUS(STATUS_BUSY, STATUS_OK); }\n"
        "RUN_ALL()\n",
    )
    result = run_program(program, PLAIN)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"{program}:2: test_numbers: 1 + 1 is 2, expected 3",
        f"{program}:3: test_conditions: expected 1 > 2",
        f"{program}:4: test_statuses: STATUS_BUSY is BUSY, expected OK",
    ]
    assert result.stdout == "3 run, 3 expectations failed\n"


def test_an_argument_selects_tests_by_name() -> None:
    program = plant(
        "selected",
        '#include "testing.h"\nTEST(good) { EXPECT(1); }\nTEST(bad) { EXPECT(0); }\nRUN_ALL()\n',
    )
    assert run_program(program, PLAIN, "good").returncode == 0
    assert run_program(program, PLAIN, "bad").returncode == 1
    assert run_program(program, PLAIN, "neither").returncode == 2


@pytest.mark.parametrize(
    ("name", "body", "report"),
    [
        ("freed", "char *volatile bytes = malloc(8); free(bytes); return bytes[0];", "heap-use-after-free"),
        ("overflow", "volatile int big = 2147483647; return big + 1 == 0;", "signed integer overflow"),
        ("check", "volatile int one = 0; CHECK_EXPENSIVE(one == 1); return 0;", "check failed: one == 1"),
    ],
)
def test_sanitizers_and_checks_are_on(name: str, body: str, report: str) -> None:
    program = plant(name, f'#include "base/check.h"\n#include <stdlib.h>\nint main(void)\n{{\n    {body}\n}}\n')
    result = run_program(program, ASAN)
    assert result.returncode != 0
    assert report in result.stderr


def test_the_thread_sanitizer_is_on() -> None:
    program = plant(
        "race",
        "#include <pthread.h>\n"
        "static int shared;\n"
        "static void *touch(void *unused) { shared++; return unused; }\n"
        "int main(void)\n{\n"
        "    pthread_t threads[2];\n"
        "    for (int i = 0; i < 2; i++) { pthread_create(&threads[i], 0, touch, 0); }\n"
        "    for (int i = 0; i < 2; i++) { pthread_join(threads[i], 0); }\n"
        "    return 0;\n}\n",
    )
    result = run_program(program, TSAN)
    assert result.returncode != 0
    assert "data race" in result.stderr


def test_the_line_in_a_file_chooses_the_thread_sanitizer() -> None:
    assert TSAN in c_build.variants_of(plant("with_line", f"{c_build.TSAN_LINE}\nint main(void) {{ return 0; }}\n"))
    assert TSAN not in c_build.variants_of(plant("without_line", "int main(void) { return 0; }\n"))


def test_code_the_compiler_warns_of_is_not_built() -> None:
    program = plant("warning", "int main(void)\n{\n    int unused;\n    return 0;\n}\n")
    with pytest.raises(BuildError, match="unused"):
        c_build.build_program(program, PLAIN)


def test_a_test_cannot_use_a_layer_above_its_own() -> None:
    assert c_build.layers_of(TESTS / "base" / "x_test.c") == ("base",)
    assert c_build.layers_of(TESTS / "arena" / "x_test.c") == ("arena", "format", "base")
    assert c_build.layers_of(TESTS / "producer" / "x_test.c") == ("producer", "arena", "format", "base")
    assert c_build.layers_of(TESTS / "sender" / "x_test.c") == (
        *("sender", "log", "broker"),
        *("arena", "format", "base"),
    )
    assert c_build.layers_of(TESTS / "arena" / "verify_test.c") == c_build.WHOLE_CORE, "it includes a header of core"
    with pytest.raises(BuildError, match="none of the folders"):
        c_build.layers_of(TESTS / "elsewhere" / "x_test.c")


def test_processes_compile_different_files_first(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Path] = []

    def compile_in_memory(source: Path, _variant: Variant) -> Path:
        compiled.append(source)
        return source.with_suffix(".o")

    monkeypatch.setattr(c_build, "build_object", compile_in_memory)
    sources = [Path(f"{number}.c") for number in range(50)]
    for _ in range(2):
        assert c_build.build_objects(sources, PLAIN) == [source.with_suffix(".o") for source in sources]
    assert sorted(compiled[:50]) == sorted(compiled[50:]) == sorted(sources)
    assert compiled[:50] != compiled[50:]


def test_a_changed_source_is_compiled_again() -> None:
    before = c_build.build_program(plant("changing", "int main(void) { return 0; }\n"), PLAIN)
    after = c_build.build_program(plant("changing", "int main(void) { return 3; }\n"), PLAIN)
    assert subprocess.run([before]).returncode == 0
    assert subprocess.run([after]).returncode == 3
