# SPDX-License-Identifier: Apache-2.0
"""Builds the one extension of the package, shmaccum._native, from every C file under native/.

On macOS and Windows it builds a wheel without the extension (shmaccum/common/unsupported_platform.py).

The project's metadata is in pyproject.toml. Environment switches of the build:

SHMACCUM_PURE       "1": build the wheel of macOS and Windows on any platform

SHMACCUM_SANITIZE   the value of -fsanitize=, "address,undefined" or "thread". The interpreter itself is not
                    sanitized, so the runtime must be loaded first: LD_PRELOAD="$(gcc -print-file-name=libasan.so)"
SHMACCUM_COVERAGE   "1": count executed lines for gcov
SHMACCUM_DEBUG      "1": no optimization, debug symbols, every check of base/check.h
SHMACCUM_POINTS     "1": compile in the points of base/point.h, where tests stop or kill a process
SHMACCUM_LATER_BUILD   "1": the later release of tests/skew, with features that this release does not know
CC                  the C compiler; the default is the one that built Python
"""

from __future__ import annotations

import functools
import gzip
import os
import shlex
import shutil
import stat
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent

LANGUAGE_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-pthread"]
WARNING_FLAGS = ["-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion"]
LENIENT_FLAGS = ["-Wall"]
# Symbols of static libraries (such as gcov's) are not exported either.
LINK_FLAGS = ["-pthread", "-Wl,--exclude-libs,ALL"]

YEAR_1980_S = 315_532_800
"""The earliest time that a zip file can have, too."""
PURE_PLATFORMS = "macosx_10_9_universal2.win32.win_amd64.win_arm64"


def native_sources() -> list[str]:
    """Returns every C file of the extension, relative to the project's root, in a stable order."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("native/**/*.c"))


def variant_sources(environment: Mapping[str, str]) -> list[str]:
    """Returns additional C files that the environment's switches ask for."""
    return ["tests/skew/later_build.c"] if environment.get("SHMACCUM_LATER_BUILD") == "1" else []


def native_headers() -> list[str]:
    """Returns every header. A change of one rebuilds the extension."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("native/**/*.h"))


def sanitize_flags(names: str) -> list[str]:
    """Returns the flags for -fsanitize=names. The first error ends the program."""
    return [f"-fsanitize={names}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"]


def variant_flags(environment: Mapping[str, str]) -> list[str]:
    """Returns the flags of the environment's switches, for both the compiler and the linker."""
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
    """Returns Python's headers as system headers, so that their warnings are not errors."""
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("include", "platinclude"))
    return [flag for folder in folders for flag in ("-isystem", folder)]


def warning_flags(root: Path) -> list[str]:
    """Returns the flags for warnings. In a checkout, a warning is an error.

    A source distribution may be built by a compiler with unknown warnings.
    """
    return WARNING_FLAGS if (root / ".git").exists() else LENIENT_FLAGS


def is_pure(environment: Mapping[str, str], platform: str) -> bool:
    """Returns True if the wheel has no extension."""
    return environment.get("SHMACCUM_PURE") == "1" or platform in ("darwin", "win32")


def missing_requirement(environment: Mapping[str, str], platform: str) -> str | None:
    """Returns the message for a host that cannot build, or None."""
    if not platform.startswith("linux"):
        return f"shmaccum needs Linux (futex, open file description locks); this is {platform}."
    compiler = shlex.split(environment.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"shmaccum needs a C compiler and found no {compiler!r}: install gcc (on Debian: apt-get install gcc)."
    return None


class BuildNative(build_ext):
    """Reports a missing requirement before the compiler does, and compiles everything each time.

    setuptools compares only the times of files, so it would reuse an object made with other flags.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True

    def run(self) -> None:
        if sentence := missing_requirement(os.environ, sys.platform):
            raise SystemExit(sentence)
        super().run()


class PureWheel(bdist_wheel):
    """Names the platforms of a wheel without the extension, so that no installer on Linux selects it."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", PURE_PLATFORMS


@functools.cache
def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Returns a folder that is deleted with this process."""
    return tempfile.TemporaryDirectory()


class OwnInfo(egg_info):
    """Writes the package's metadata into a folder of this build, which is deleted with its process.

    setuptools writes it below the project's root, where two builds would overwrite each other's files.
    """

    def initialize_options(self) -> None:
        super().initialize_options()
        self.egg_base = own_folder().name


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Removes from a member of an archive whatever differs between two hosts."""
    member.mtime = int(os.environ.get("SOURCE_DATE_EPOCH", YEAR_1980_S))
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
    return member


class StagedSource(sdist):
    """Gathers a source distribution in its own folder. The same files make the same bytes.

    setuptools gathers it below the project's root, where two builds would remove each other's files.
    """

    def make_distribution(self) -> None:
        name = self.distribution.get_fullname()
        target = Path(self.dist_dir).resolve() / f"{name}.tar.gz"
        files = [path for path in self.filelist.files if not os.path.isabs(path)]  # without those of egg_info
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory() as stage,
            target.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            self.make_release_tree(os.path.join(stage, name), files)
            archive.add(os.path.join(stage, name), name, filter=plain)
        self.archive_files = [str(target)]


def native_extension() -> Extension:
    """Returns shmaccum._native as the environment requests it."""
    flags = variant_flags(os.environ)
    return Extension(
        "shmaccum._native",
        sources=[*native_sources(), *variant_sources(os.environ)],
        depends=native_headers(),
        include_dirs=["native"],
        extra_compile_args=[*python_header_flags(), *LANGUAGE_FLAGS, *warning_flags(ROOT), *flags],
        extra_link_args=[*LINK_FLAGS, *flags],
    )


# Spark finds data sources in top-level packages named pyspark_*. This one is in the folder of all Spark code.
SPARK_DISCOVERY = {"pyspark_shmaccum": "shmaccum/spark/discovery"}


COMMANDS = {"build_ext": BuildNative, "egg_info": OwnInfo, "sdist": StagedSource}


if __name__ == "__main__":
    packages = find_packages(include=["shmaccum*"])
    if is_pure(os.environ, sys.platform):
        setup(packages=packages, cmdclass={**COMMANDS, "bdist_wheel": PureWheel})
    else:
        setup(
            packages=[*packages, *SPARK_DISCOVERY],
            package_dir=SPARK_DISCOVERY,
            ext_modules=[native_extension()],
            cmdclass=COMMANDS,
        )
