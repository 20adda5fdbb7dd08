# SPDX-License-Identifier: Apache-2.0
"""Each rule finds a planted violation, and accepts near misses."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from tests.architecture import rules
from tests.architecture.rules import Rule


def c_function(line_count: int) -> str:
    body = "    work();\n" * (line_count - 2)
    return f"static void busy(void)\n{{\n{body}}}\n"


def python_function(line_count: int, docstring: str = "") -> str:
    return f"def busy():\n{docstring}" + "    work()\n" * (line_count - 1)


DOCSTRING = '    """Says\n' + "    much\n" * 30 + '    """\n'
UNFINISHED = "".join(["TO", "DO"])
MACHINE_PATH = "/".join(["", "work", "main"])

VIOLATIONS = [
    (rules.long_line, "native/base/a.c", "x" * 121),
    (rules.missing_license, "shmaccum/a.py", "import os\n"),
    (rules.missing_license, "shmaccum/a.py", "\n\n# SPDX-License-Identifier: Apache-2.0\n"),
    (rules.banned_word, "shmaccum/a.py", f"# {UNFINISHED}: more\n"),
    (rules.banned_word, "docs/a.rst", f"see {MACHINE_PATH}\n"),
    (rules.short_underline, "docs/a.rst", "One page\n--------\n\nAnother page\n-----------\n"),
    (rules.upward_include, "native/base/a.c", '#include "format/varint.h"\n'),
    (rules.upward_include, "native/format/a.h", '#  include "arena/arena.h"\n'),
    (rules.upward_include, "native/arena/a.c", '#include "python/common/arguments.h"\n'),
    (rules.upward_include, "native/arena/a.c", '#include "producer/a.h"\n'),
    (rules.upward_include, "native/arena/a.c", '#include "sender/a.h"\n'),
    (rules.upward_include, "native/producer/a.c", '#include "sender/a.h"\n'),
    (rules.upward_include, "native/sender/a.c", '#include "producer/a.h"\n'),
    (rules.upward_include, "native/sender/a.c", '#include "python/sender/a.h"\n'),
    (rules.upward_include, "native/python/common/a.c", '#include "python/arena/a.h"\n'),
    (rules.upward_include, "native/python/producer/a.c", '#include "python/arena/a.h"\n'),
    (rules.upward_include, "native/python/producer/a.c", '#include "python/sender/a.h"\n'),
    (rules.upward_include, "native/python/sender/a.c", '#include "python/producer/a.h"\n'),
    (rules.upward_include, "native/python/sender/a.c", '#include "producer/a.h"\n'),
    (rules.upward_include, "native/python/log/a.c", '#include "arena/arena.h"\n'),
    (rules.upward_include, "native/python/a.c", ""),
    (rules.upward_include, "native/arena/a.c", '#include "arena.h"\n'),
    (rules.upward_include, "native/base/a.c", '#include "../arena/arena.h"\n'),
    (rules.upward_include, "native/extra/a.c", ""),
    (rules.upward_include, "native/a.c", ""),
    (rules.python_header, "native/arena/a.h", "#include <Python.h>\n"),
    (rules.python_header, "bench/native/a.c", "#include <Python.h>\n"),
    (rules.python_header, "native/base/a.c", '#include "Python.h"\n'),
    (rules.bare_atomic, "native/arena/a.c", "#include <stdatomic.h>\n"),
    (rules.bare_atomic, "native/arena/a.c", "x = atomic_load_explicit(&y, memory_order_relaxed);\n"),
    (rules.bare_atomic, "native/arena/a.c", "__atomic_store_n(&x, 1, __ATOMIC_RELEASE);\n"),
    (rules.unlabelled_barrier, "native/arena/a.c", "    barrier_store_load();\n"),
    (rules.unlabelled_barrier, "native/arena/a.c", "    barrier_store_load(); /* before the word */\n"),
    (rules.check_of_input, "native/arena/a.c", "    CHECK(load_relaxed_u32(&slot->count) <=\n          3);\n"),
    (rules.long_c_function, "native/base/a.c", c_function(71)),
    (rules.long_c_function, "native/base/a.c", c_function(3) + c_function(71)),
    (rules.long_python_function, "shmaccum/a.py", python_function(71)),
    (rules.long_python_function, "shmaccum/a.py", "async " + python_function(71)),
    (rules.pyspark_outside_spark, "shmaccum/a.py", "import pyspark.sql\n"),
    (rules.pyspark_outside_spark, "shmaccum/cli/a.py", "import pyspark.sql\n"),
    (rules.pyspark_outside_spark, "shmaccum/sender/sinks/a.py", "def f():\n    from pyspark import sql\n"),
    (rules.kafka_outside_library, "shmaccum/sender/sinks/kafka/topics.py", "from kafka.errors import KafkaError\n"),
    (rules.kafka_outside_library, "shmaccum/sender/sinks/kafka/sink.py", "def f():\n    import kafka\n"),
    (rules.bare_select, "shmaccum/sender/sinks/a.py", "import select\n"),
    (rules.replaceable_clock, "shmaccum/a.py", "now_s = time.monotonic()\n"),
    (rules.replaceable_clock, "shmaccum/a.py", "def f(now: Callable[[], int] = time.monotonic_ns) -> None:\n"),
    (rules.replaceable_clock, "shmaccum/a.py", "from time import monotonic\n"),
    (rules.crossing_import, "shmaccum/producer/producer.py", "from shmaccum.sender import Sender\n"),
    (rules.crossing_import, "shmaccum/producer/pipeline.py", "from shmaccum import sender\n"),
    (rules.crossing_import, "shmaccum/producer/__init__.py", "from ..sender import host\n"),
    (rules.crossing_import, "shmaccum/sender/loop.py", "from ..producer import Producer\n"),
    (rules.crossing_import, "shmaccum/sender/loop.py", "def f():\n    import shmaccum.producer.delivery\n"),
    (rules.crossing_import, "shmaccum/supervisor/start.py", "from shmaccum.sender.service import SenderService\n"),
    (rules.crossing_import, "shmaccum/supervisor/start.py", "import shmaccum.producer\n"),
    (rules.crossing_import, "shmaccum/arena/arena.py", "from shmaccum.sender.sinks.names import readable_name\n"),
    (rules.crossing_import, "shmaccum/arena/tables.py", "from ..producer import delivery\n"),
    (rules.crossing_import, "shmaccum/log/consumer/consumer.py", "from shmaccum.log.server import LogServer\n"),
    (rules.crossing_import, "shmaccum/compat/settings.py", "from shmaccum.sender import Sender\n"),
    (rules.crossing_import, "shmaccum/aio/producer.py", "from shmaccum.compat.errors import join\n"),
    (rules.crossing_import, "shmaccum/log/groups/a.py", "from shmaccum.log.consumer import Consumer\n"),
    (rules.unguarded_open, "shmaccum/log/files/a.py", 'with open(path, "rb") as file:\n    pass\n'),
    (rules.unguarded_open, "shmaccum/log/files/a.py", "a = os.open(path, os.O_RDONLY)\n"),
    (rules.unguarded_open, "shmaccum/log/files/a.py", "a = Path(path).read_text()\n"),
]

NEAR_MISSES = [
    (rules.long_line, "native/base/a.c", "é" * 120),
    (rules.missing_license, "shmaccum/py.typed", ""),
    (rules.missing_license, ".ci/run", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"),
    (rules.banned_word, "shmaccum/a.py", f"mkstemp('XXXXXX'); {UNFINISHED.lower()} = 1; framework/\n"),
    (rules.short_underline, "docs/a.rst", "A page\n------\n\n====  ====\nname  text\n====  ====\n"),
    (rules.upward_include, "native/arena/a.c", '#include "base/a.h"\n#include "arena/a.h"\n#include <stdio.h>\n'),
    (rules.upward_include, "native/sender/a.c", '#include "format/a.h"\n#include "arena/a.h"\n'),
    (rules.upward_include, "native/python/producer/a.c", '#include "producer/a.h"\n#include "python/common/a.h"\n'),
    (rules.upward_include, "native/python/module.c", '#include "python/producer/a.h"\n'),
    (rules.upward_include, "native/base/a.c", '/* #include "arena/arena.h" */\n'),
    (rules.python_header, "native/python/log/a.c", "#include <Python.h>\n"),
    (rules.python_header, "bench/native/empty_call.c", "#include <Python.h>\n"),
    (rules.bare_atomic, "native/base/atomic.h", "#include <stdatomic.h>\nmemory_order_relaxed\n"),
    (rules.bare_atomic, "native/arena/a.c", "/* not memory_order_relaxed: */ load_acquire_u64(&x);\n"),
    (rules.unlabelled_barrier, "native/arena/a.c", "    barrier_store_load(); /* W2: before the look */\n"),
    (rules.unlabelled_barrier, "native/base/atomic.h", "    barrier_store_load();\n"),
    (rules.check_of_input, "native/arena/a.c", "    CHECK(i < slot_count);\n    x = load_relaxed_u32(&slot->count);\n"),
    (rules.long_c_function, "native/base/a.c", c_function(70) + c_function(70)),
    (rules.long_c_function, "native/base/a.c", "struct a {\n" + "    int b;\n" * 80 + "};\n"),
    (rules.long_c_function, "native/base/a.h", "/*\n{\n" + " * prose\n" * 80 + "}\n*/\n"),
    (rules.long_python_function, "shmaccum/a.py", python_function(70)),
    (rules.long_python_function, "shmaccum/a.py", python_function(69, DOCSTRING)),
    (rules.pyspark_outside_spark, "shmaccum/spark/a.py", "import pyspark\n"),
    (rules.pyspark_outside_spark, "shmaccum/a.py", "import pyspark_shmaccum\n"),
    (rules.kafka_outside_library, "shmaccum/sender/sinks/kafka/library/transport.py", "import kafka\n"),
    (
        rules.kafka_outside_library,
        "shmaccum/sender/sinks/kafka/sink.py",
        "from shmaccum.sender.sinks.kafka.sink import library\n",
    ),
    (rules.kafka_outside_library, "shmaccum/compat/kafka_python.py", "import kafka\n"),
    (rules.bare_select, "shmaccum/arena/wake_fifo.py", "import select\n"),
    (rules.bare_select, "shmaccum/sender/sinks/kafka/library/a.py", "import selectors\n"),
    (rules.replaceable_clock, "shmaccum/a.py", "now_s = clock.monotonic()\n"),
    (rules.replaceable_clock, "shmaccum/a.py", '"""Seconds, on the clock of time.monotonic()."""\n'),
    (rules.replaceable_clock, "shmaccum/common/clock.py", "time.monotonic\n"),
    (rules.crossing_import, "shmaccum/producer/producer.py", "from shmaccum.arena import Arena\n"),
    (rules.crossing_import, "shmaccum/cli/run.py", "from ..producer import Producer\nfrom ..sender import Sender\n"),
    (rules.crossing_import, "shmaccum/sender/loop.py", "from . import drain\nfrom shmaccum.sender import x\n"),
    (rules.crossing_import, "shmaccum/arena/arena.py", "from shmaccum.config import ArenaOptions\n"),
    (rules.unguarded_open, "shmaccum/log/files/a.py", "a = open(path, opener=open_regular)\n"),
    (rules.unguarded_open, "shmaccum/log/files/a.py", "a = os.open(path, os.O_RDONLY | os.O_DIRECTORY)\n"),
    (rules.unguarded_open, "shmaccum/log/files/regular_files.py", "a = os.open(path, flags)\n"),
    (rules.unguarded_open, "shmaccum/arena/file.py", "a = os.open(path, flags)\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), VIOLATIONS)
def test_a_planted_violation_is_found(rule: Rule, path: str, text: str) -> None:
    assert list(rule(PurePosixPath(path), text)) != []


@pytest.mark.parametrize(("rule", "path", "text"), NEAR_MISSES)
def test_a_near_miss_passes(rule: Rule, path: str, text: str) -> None:
    assert list(rule(PurePosixPath(path), text)) == []


def test_a_comment_keeps_its_lines_and_a_string_its_text() -> None:
    code = 'a /* b\nc */ d // e\n"/* f */" g'
    assert rules.without_comments(code) == 'a     \n     d     \n"/* f */" g'


def test_a_file_left_out_of_the_build_is_found() -> None:
    files = {"native/base/a.c", "native/base/a.h", "native/arena/b.c"}
    assert rules.uncompiled(files, {"native/base/a.c"}) == {"native/arena/b.c"}


def test_a_header_that_is_not_included_is_found() -> None:
    files = {"native/base/a.h": "", "native/base/b.h": '/* "base/b.h" */', "native/arena/c.c": '#include "base/a.h"\n'}
    assert rules.unused_headers(files) == {"native/base/b.h"}


PACKAGE = {
    "shmaccum/a/__init__.py": "from shmaccum.a.first import x\n",
    "shmaccum/a/first.py": "def f():\n    from shmaccum.a import second\n",
    "shmaccum/a/second.py": "import os\nfrom shmaccum import __version__\n",
    "shmaccum/__init__.py": "from shmaccum.a import x\n",
}


@pytest.mark.parametrize(
    "planted", ["from shmaccum.a.first import x\n", "if TYPE_CHECKING:\n    from . import first\n"]
)
def test_a_circle_of_imports_is_found(planted: str) -> None:
    files = {PurePosixPath(path): text for path, text in PACKAGE.items()}
    assert rules.import_circle(rules.import_graph(files)) == []
    files[PurePosixPath("shmaccum/a/second.py")] = planted
    assert {"shmaccum.a.first", "shmaccum.a.second"} <= set(rules.import_circle(rules.import_graph(files)))


def test_a_circle_of_rooms_is_found_where_no_modules_make_one() -> None:
    graph = {
        "shmaccum.a.first": {"shmaccum.b.first"},
        "shmaccum.b.first": set[str](),
        "shmaccum.b.second": {"shmaccum.a.second"},
        "shmaccum.a.second": set[str](),
    }
    assert rules.import_circle(graph) == []
    assert rules.import_circle(rules.room_graph(graph)) == ["a", "b"]


def test_ends_of_edges_are_counted() -> None:
    edges = 'P1,"a: x, then y",P2,b (Q3),all\nS1,a,S1,b,c\n'
    page = "   * - H1 / H2\n     - a (Q4)\n     - b\n"
    assert rules.edge_ends(page, edges) == {"P1": 1, "P2": 1, "H1": 1, "H2": 1, "S1": 2}


def test_labels_are_counted_after_code_only() -> None:
    text = "/* S1 pairs with S2 */\nstore(a); /* S1 */\nif (load(b)) { /* S1: or\n * later, S2 */\n"
    assert rules.labels_of_code(text) == {"S1": 2, "S2": 1}


def test_every_exported_symbol_is_read() -> None:
    output = "0000000000001300 T PyInit__native\n0000000000001400 T status_name\n                 w weak\n"
    assert rules.exported_symbols(output) == {"PyInit__native", "status_name", "weak"}


def test_checks_are_counted_per_function() -> None:
    function = "void f(int a)\n{\n    CHECK(a > 0);\n    STATIC_CHECK(A < B); /* CHECK(a > 1); */\n}\n"
    assert rules.checks_per_function([function]) == 1
    assert rules.checks_per_function([function, c_function(3)]) == 0.5


def test_a_module_without_a_line_in_the_overview_is_found() -> None:
    assert rules.modules_without_a_line("`first` and second_one", ["first", "second", "second_one"]) == ["second"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("native/base/a.c", '/* See base/a.h, b.c and gone.h. */\nconst char *path = "x.h";\n'),
        ("shmaccum/a.py", '"""See base/a.h and gone.h."""\npath = "x.h"  # b.c\n'),
    ],
)
def test_a_file_that_is_named_and_gone_is_found(path: str, text: str) -> None:
    known = {name for file in ("native/base/a.h", "native/b.c") for name in rules.endings(PurePosixPath(file))}
    assert rules.missing_files(PurePosixPath(path), text, known) == ["gone.h"]


def test_a_member_that_is_named_and_gone_is_found() -> None:
    base = "class A:\n    x: int\n    def f(self):\n        self.y = 1\n"
    text = base + 'class B(A):\n    """`A.f`, `B.f()`, `B.x`, `A.y`, `A.gone` and `Gone.f`."""\n'
    classes = rules.classes_of([text])
    assert rules.missing_members(PurePosixPath("shmaccum/a.py"), text, classes) == ["A.gone", "Gone.f"]
