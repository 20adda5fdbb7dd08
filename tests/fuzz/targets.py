# SPDX-License-Identifier: Apache-2.0
"""Build the fuzz targets in C, and read and write their stored inputs.

A target is ``NAME_fuzz.c``. The tests build it with gcc and ``fuzz_main.c``: the program repeats its corpus and tries
changes of it. ``make fuzz`` builds it with clang and libFuzzer, which searches for inputs that cover more. Both builds
use ASan and UBSan, and all checks. The core is compiled against ``in_memory.h``. The functions of the module that a
fetch uses are compiled as they are, and linked with Python.

``corpus/NAME.zlib``: per input its size in four bytes, then the input; all of it compressed.
"""

from __future__ import annotations

import struct
import sysconfig
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from setup import ROOT, python_header_flags
from tests.native import c_build
from tests.native.c_build import ASAN, LAYERS

HERE = Path(__file__).parent
NAMES = tuple(sorted(source.name.removesuffix("_fuzz.c") for source in HERE.glob("*_fuzz.c")))
MODULE_FOLDER = ROOT / "native" / "python"
MODULE_SOURCES = {
    "fetch": (
        *("common/arguments.c", "common/errors.c", "common/items.c", "log/fetch_request.c", "log/fetch_response.c"),
        *("log/log_calls.c", "log/send_pieces.c", "log/serve_fetch.c"),
    )
}
"""Targets that embed Python -> the sources that they test, below `MODULE_FOLDER`."""


class Parts(NamedTuple):
    """The parts of a target other than its own source."""

    kind: str
    """The name of the objects that are compiled in this way."""
    flags: tuple[str, ...]
    sources: list[Path]
    """The sources that are compiled with the flags."""
    layers: tuple[str, ...]
    """Folders of native/ that are compiled as they are."""
    libraries: list[Path]


def python_library() -> Path | None:
    """Return the library of the running Python, or None if a program cannot be linked with it."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return None
    library = Path(sysconfig.get_config_var("LIBDIR")) / sysconfig.get_config_var("LDLIBRARY")
    return library if library.exists() else None


def lack_of(name: str) -> str | None:
    """Return the reason why a target cannot be built here, or an empty string."""
    return "this Python has no library to link with" if name in MODULE_SOURCES and python_library() is None else None


def parts_of(name: str) -> Parts:
    """Return the parts of a target that can be built here."""
    library = python_library()
    if name in MODULE_SOURCES and library is not None:
        sources = [MODULE_FOLDER / source for source in MODULE_SOURCES[name]]
        flags = (*python_header_flags(), f"-Wl,-rpath,{library.parent}")
        return Parts("python", flags, sources, ("broker", "log", "format", "base"), [library])
    core = [source for layer in LAYERS for source in c_build.layer_sources(layer)]
    return Parts("in-memory", ("-include", str(HERE / "in_memory.h")), [HERE / "in_memory.c", *core], (), [])


def source_of(name: str) -> Path:
    return HERE / f"{name}_fuzz.c"


def corpus_path(name: str) -> Path:
    return HERE / "corpus" / f"{name}.zlib"


def build(name: str) -> Path:
    """Build the target with the driver of fuzz_main.c, and return its path."""
    parts = parts_of(name)
    variant = replace(ASAN, name=f"asan-{parts.kind}", flags=(*ASAN.flags, *parts.flags))
    objects = c_build.build_objects([source_of(name), *parts.sources], variant)
    driver = c_build.build_object(HERE / "fuzz_main.c", ASAN)
    layers = [c_build.build_library(layer, ASAN) for layer in parts.layers]
    return c_build.link(f"{name}_fuzz", [driver, *objects, *layers, *parts.libraries], variant)


# --- corpora


def pack(inputs: Iterable[bytes]) -> bytes:
    """Return the inputs in the format of fuzz_main.c."""
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
    """Return the packed corpus, or empty bytes if none is stored."""
    path = corpus_path(name)
    return zlib.decompress(path.read_bytes()) if path.exists() else b""


def corpus_write(name: str, inputs: Iterable[bytes]) -> None:
    """Store these inputs, in an order that compresses well and does not depend on the order in which they were
    found.
    """
    path = corpus_path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(pack(sorted(inputs)), 9))
