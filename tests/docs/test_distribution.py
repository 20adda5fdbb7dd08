# SPDX-License-Identifier: Apache-2.0
"""The documentation goes where its readers are: into the source distribution, and behind the README's links."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from importlib.metadata import metadata
from pathlib import Path, PurePosixPath

import pytest

from setup import ROOT

README = (ROOT / "README.rst").read_text(encoding="utf-8")
LINK = re.compile(r"<(https?://[^>]+|[\w./-]+)>`_|^\.\. _[\w ]+: (\S+)$|^\.\. image:: (\S+)$", re.MULTILINE)
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"


def project_urls() -> dict[str, str]:
    """The places of pyproject.toml's project.urls by their names."""
    return dict(link.split(", ", 1) for link in metadata("shmaccum").get_all("Project-URL") or [])


def readme_links() -> list[str]:
    return [next(filter(None, found)) for found in LINK.findall(README)]


def source_of(link: str) -> Path | None:
    """The file of this repository that an absolute link of the README leads to; None for any other place."""
    urls = project_urls()
    raw = urls["Repository"].replace("//github.com", "//raw.githubusercontent.com") + "/main/"
    if link.startswith(raw):
        return ROOT / link.removeprefix(raw)
    if link.startswith(urls["Documentation"]):
        return ROOT / "docs" / PurePosixPath(link.removeprefix(urls["Documentation"])).with_suffix(".rst")
    return None


def test_every_link_of_the_readme_is_absolute_and_leads_to_a_page() -> None:
    links = readme_links()
    assert len(links) > 8, "the links are not found"
    assert [link for link in links if source_of(link) is None] == [], "not in a place of project.urls"
    assert [link for link in links if not (found := source_of(link)) or not found.is_file()] == []


def test_the_first_screen_of_the_readme_has_a_running_program() -> None:
    first_screen = "\n".join(README.splitlines()[:60])
    assert all(f"make {target}" in first_screen for target in ("run", "test", "spark-run"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a source distribution of this tree, without its top folder."""
    folder = tmp_path_factory.mktemp("sdist")
    built = subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    with tarfile.open(folder / built.stdout.split()[-1]) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def kept(folder: str) -> set[str]:
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in found}


def test_the_documentation_is_in_the_source_distribution(sdist: set[str]) -> None:
    assert kept("docs") - sdist == set(), "MANIFEST.in leaves these out"
    pages = {"README.rst", "CONTRIBUTING.rst", "CHANGELOG.rst", "SECURITY.rst", "LICENSE", "Makefile", "pyproject.toml"}
    assert pages <= sdist
    assert any(name.endswith(".png") for name in sdist), "no picture"


def test_the_core_and_its_tests_are_in_the_source_distribution(sdist: set[str]) -> None:
    left_out = {name for name in kept("native") | kept("shmaccum") if not name.endswith((".so", ".gcno"))} - sdist
    assert left_out == set(), "MANIFEST.in leaves these out"
