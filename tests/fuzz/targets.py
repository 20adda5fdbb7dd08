# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets in C: how they are built, and the inputs that are kept of them.

A target is ``NAME_fuzz.c``. Built with gcc and ``fuzz_main.c`` it repeats its corpus and tries changes of it, which is
what the tests do; built with clang and libFuzzer it looks for what is not covered yet, which is ``make fuzz``. Either
way the core is compiled against ``in_memory.h``, under ASan and UBSan, with its checks.

``corpus/NAME.zlib``: per input its size in four bytes, then the input; all of it compressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.native import c_build
from tests.native.c_build import ASAN, LAYERS

HERE = Path(__file__).parent
NAMES = tuple(sorted(source.name.removesuffix("_fuzz.c") for source in HERE.glob("*_fuzz.c")))
IN_MEMORY = replace(ASAN, name="asan-in-memory", flags=(*ASAN.flags, "-include", str(HERE / "in_memory.h")))


def source_of(name: str) -> Path:
    return HERE / f"{name}_fuzz.c"


def corpus_path(name: str) -> Path:
    return HERE / "corpus" / f"{name}.zlib"


def build(name: str) -> Path:
    """The target with the driver of fuzz_main.c."""
    core = [source for layer in LAYERS for source in c_build.layer_sources(layer)]
    in_memory = c_build.build_objects([source_of(name), HERE / "in_memory.c", *core], IN_MEMORY)
    driver = c_build.build_object(HERE / "fuzz_main.c", ASAN)
    return c_build.link(f"{name}_fuzz", [driver, *in_memory], ASAN)


# --- corpora


def pack(inputs: Iterable[bytes]) -> bytes:
    """The inputs in the format of fuzz_main.c."""
    return b"".join(struct.pack("<I", len(each)) + each for each in inputs)


def unpack(packed: bytes) -> list[bytes]:
    inputs = []
    at = 0
    while at < len(packed):
        (size,) = struct.unpack_from("<I", packed, at)
        inputs.append(packed[at + 4 : at + 4 + size])
        at += 4 + size
    return inputs


def corpus_read(name: str) -> bytes:
    """The packed corpus; nothing when none is kept."""
    path = corpus_path(name)
    return zlib.decompress(path.read_bytes()) if path.exists() else b""


def corpus_write(name: str, inputs: Iterable[bytes]) -> None:
    """Keeps these inputs, in an order that compresses and does not depend on how they were found."""
    path = corpus_path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(pack(sorted(inputs)), 9))
