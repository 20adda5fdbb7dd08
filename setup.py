# SPDX-License-Identifier: Apache-2.0
"""Builds the one extension of the package, shmaccum._native, from every C file under native/.

The project's metadata is in pyproject.toml. Environment switches of the build:

SHMACCUM_SANITIZE   what to give to -fsanitize=, "address,undefined" or "thread". The interpreter itself is not
                    sanitized, so the runtime must be loaded first: LD_PRELOAD="$(gcc -print-file-name=libasan.so)"
SHMACCUM_COVERAGE   "1": count executed lines for gcov
SHMACCUM_DEBUG      "1": no optimization, debug symbols, every check of base/check.h
SHMACCUM_POINTS     "1": compile in the points of base/point.h, where tests stop or kill a process
SHMACCUM_LATER_BUILD   "1": what tests/skew takes for a later release, with features that this one does not know
CC                  the C compiler; without it, the one Python was built with
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent

LANGUAGE_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-pthread"]
WARNING_FLAGS = ["-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion"]
LENIENT_FLAGS = ["-Wall"]
# Nothing of a static library (gcov's, for one) is exported either.
LINK_FLAGS = ["-pthread", "-Wl,--exclude-libs,ALL"]


def native_sources() -> list[str]:
    """Every C file of the extension, relative to the project's root, in a stable order."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("native/**/*.c"))


def variant_sources(environment: Mapping[str, str]) -> list[str]:
    """C files beside those of the extension that the environment's switches ask for."""
    return ["tests/skew/later_build.c"] if environment.get("SHMACCUM_LATER_BUILD") == "1" else []


def native_headers() -> list[str]:
    """Every header; a change of one rebuilds the extension."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("native/**/*.h"))


def sanitize_flags(names: str) -> list[str]:
    """Flags for -fsanitize=names; the first error ends the program."""
    return [f"-fsanitize={names}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"]


def variant_flags(environment: Mapping[str, str]) -> list[str]:
    """Flags the environment's switches ask for, given to the compiler and to the linker alike."""
    is_debug = environment.get("SHMACCUM_DEBUG") == "1"
    flags = ["-O0", "-g", "-DCHECK_LEVEL=2"] if is_debug else ["-O2"]
    if names := environment.get("SHMACCUM_SANITIZE"):
        flags += sanitize_flags(names)
    if environment.get("SHMACCUM_COVERAGE") == "1":
        flags += ["--coverage"]
    if environment.get("SHMACCUM_POINTS") == "1":
        flags += ["-DSHMACCUM_POINTS"]
    if environment.get("SHMACCUM_LATER_BUILD") == "1":
        flags += ["-DSHMACCUM_LATER_BUILD"]
    return flags


def python_header_flags() -> list[str]:
    """Python's headers as system headers: our warnings are for our code, and -Werror must not depend on theirs."""
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("include", "platinclude"))
    return [flag for folder in folders for flag in ("-isystem", folder)]


def warning_flags(root: Path) -> list[str]:
    """The flags for warnings: in a checkout a warning is an error.

    A source distribution may meet a compiler whose warnings nobody here has seen.
    """
    return WARNING_FLAGS if (root / ".git").exists() else LENIENT_FLAGS


def missing_requirement(environment: Mapping[str, str], platform: str) -> str | None:
    """The sentence for whoever cannot build here, or None."""
    if not platform.startswith("linux"):
        return f"shmaccum needs Linux (futex, open file description locks); this is {platform}."
    compiler = shlex.split(environment.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"shmaccum needs a C compiler and found no {compiler!r}: install gcc (on Debian: apt-get install gcc)."
    return None


class BuildNative(build_ext):
    """Says what is missing before the compiler does, and compiles everything each time.

    setuptools compares the times of files only: it would keep an object made with other flags.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True

    def run(self) -> None:
        if sentence := missing_requirement(os.environ, sys.platform):
            raise SystemExit(sentence)
        super().run()


@functools.cache
def own_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that ends with this process."""
    return tempfile.TemporaryDirectory()


class OwnInfo(egg_info):
    """Notes what is known of the package in a folder of this build's own, which ends with its process.

    setuptools notes it below the project's root, where two builds would write over each other's files.
    """

    def initialize_options(self) -> None:
        super().initialize_options()
        self.egg_base = own_folder().name


class StagedSource(sdist):
    """Gathers a source distribution in a folder of its own.

    setuptools gathers it below the project's root, where two builds would take each other's files away.
    """

    def make_distribution(self) -> None:
        name = self.distribution.get_fullname()
        target = Path(self.dist_dir).resolve() / name
        files = [path for path in self.filelist.files if not os.path.isabs(path)]  # without those of egg_info
        with tempfile.TemporaryDirectory() as stage:
            self.make_release_tree(os.path.join(stage, name), files)
            kinds = self.formats or ["gztar"]
            self.archive_files = [self.make_archive(str(target), kind, root_dir=stage, base_dir=name) for kind in kinds]


def native_extension() -> Extension:
    """shmaccum._native, as the environment asks for it."""
    flags = variant_flags(os.environ)
    return Extension(
        "shmaccum._native",
        sources=[*native_sources(), *variant_sources(os.environ)],
        depends=native_headers(),
        include_dirs=["native"],
        extra_compile_args=[*python_header_flags(), *LANGUAGE_FLAGS, *warning_flags(ROOT), *flags],
        extra_link_args=[*LINK_FLAGS, *flags],
    )


# Spark finds data sources in top-level packages called pyspark_*; this one lies with the rest of what is Spark's.
SPARK_DISCOVERY = {"pyspark_shmaccum": "shmaccum/spark/discovery"}


if __name__ == "__main__":
    setup(
        packages=[*find_packages(include=["shmaccum*"]), *SPARK_DISCOVERY],
        package_dir=SPARK_DISCOVERY,
        ext_modules=[native_extension()],
        cmdclass={"build_ext": BuildNative, "egg_info": OwnInfo, "sdist": StagedSource},
    )
