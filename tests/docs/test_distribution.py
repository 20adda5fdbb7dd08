# SPDX-License-Identifier: Apache-2.0
"""The documentation is part of the source distribution, and the README's links lead to it."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tarfile
from importlib.metadata import metadata
from pathlib import Path, PurePosixPath

import packaging.utils
import pytest
import yaml
from packaging.requirements import Requirement
from setuptools import Distribution
from setuptools.command.egg_info import FileList

import shmaccum
from setup import ROOT, OwnInfo, StagedSource, warning_flags

README = (ROOT / "README.rst").read_text(encoding="utf-8")
LINK = re.compile(r"<(https?://[^>]+|[\w./-]+)>`_|^\.\. _[\w -]+: (\S+)$|^\.\. image:: (\S+)$", re.MULTILINE)
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"


def project_urls() -> dict[str, str]:
    """The URLs of pyproject.toml's project.urls by their names."""
    return dict(link.split(", ", 1) for link in metadata("shmaccum").get_all("Project-URL") or [])


def readme_links() -> list[str]:
    return [next(filter(None, found)) for found in LINK.findall(README)]


def source_of(link: str) -> Path | None:
    """The file of this repository to which an absolute link of the README leads, or None for any other place."""
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


def test_the_first_screen_of_the_readme_has_a_program_two_commands_and_the_cases_against_it() -> None:
    first_screen = "\n".join(README.splitlines()[:72])
    assert all(f"    make {target} " in first_screen for target in ("run", "test"))
    assert "shmaccum.Producer(" in first_screen
    assert "When not to use it\n" in first_screen


def test_each_sentence_of_the_promise_names_commands_that_the_page_of_proofs_has() -> None:
    promise = README.partition("\nThe promise\n")[2].partition("\nFigures\n")[0]
    sentences = re.findall(r"^\d\. (.*?)(?=^\d\. |^`)", promise, re.MULTILINE | re.DOTALL)
    assert len(sentences) == 4
    proofs = " ".join((ROOT / "docs" / "explanation" / "proofs.rst").read_text(encoding="utf-8").split())
    for sentence in sentences:
        named = re.findall(r"``((?:tests/|python -m |make )[^`]+)``", " ".join(sentence.split()))
        assert named, sentence
        assert [command for command in named if command not in proofs] == []


# One worker builds the source distribution for both tests.
in_one_worker = pytest.mark.xdist_group("source distribution")


def built_source(folder: Path, mask: int) -> Path:
    """A source distribution of this tree, built by a process with this umask."""
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, capture_output=True, text=True, umask=mask
    )
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.split()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_source(tmp_path_factory.mktemp("sdist"), 0o022)


@pytest.fixture(scope="module")
def sdist(source: Path) -> set[str]:
    """The names of the files in a source distribution, without its top folder."""
    with tarfile.open(source) as archive:
        return {member.name.partition("/")[2] for member in archive if not member.isdir()}


class WatchedSource(StagedSource):
    """Gathers nothing, and records the folder in which it would."""

    stage: Path

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        self.stage = Path(base_dir).parent
        Path(base_dir).mkdir()


def staged_folder(target: Path) -> Path:
    """Return the folder in which a build gathers its files. It leaves an empty archive in the target."""
    target.mkdir()
    build = WatchedSource(Distribution({"name": "shmaccum"}))
    build.dist_dir, build.filelist = str(target), FileList()
    build.make_distribution()
    assert [path.suffix for path in target.iterdir()] == [".gz"]
    return build.stage


def test_two_builds_of_a_source_distribution_gather_in_folders_of_their_own(tmp_path: Path) -> None:
    stages = [staged_folder(tmp_path / name) for name in ("one", "two")]
    assert len({*stages}) == 2, "two builds would take each other's files away"
    assert not any(stage.is_relative_to(ROOT) for stage in stages)


def test_a_build_notes_what_it_knows_of_the_package_outside_of_the_project() -> None:
    noted = [OwnInfo(Distribution({"name": "shmaccum"})) for _ in range(2)]
    for command in noted:
        command.ensure_finalized()
    (folder,) = {Path(command.egg_info).parent for command in noted}
    assert folder.is_dir()
    assert not folder.is_relative_to(ROOT), "two builds would write over each other's files"


@in_one_worker
def test_two_builds_of_a_source_distribution_have_equal_bytes(source: Path, tmp_path: Path) -> None:
    assert built_source(tmp_path, 0o077).read_bytes() == source.read_bytes()


@in_one_worker
def test_a_source_distribution_has_every_file_of_the_project_and_no_other(sdist: set[str]) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("this tree is no checkout of git")
    assert sdist == {*filter(lambda name: (ROOT / name).is_file(), listed.stdout.splitlines()), "PKG-INFO", "setup.cfg"}


def test_the_version_is_the_same_everywhere() -> None:
    assert f'version = "{shmaccum.__version__}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    build = (ROOT / "native/base/build.h").read_text(encoding="utf-8")
    assert f'#define BUILD_VERSION "{shmaccum.__version__}"' in build


def test_the_metadata_name_authors_and_where_vulnerabilities_go() -> None:
    assert metadata("shmaccum")["Author"] == "the authors of shmaccum"
    assert project_urls()["Security"] == f"{project_urls()['Repository']}/security"


def test_a_wheel_is_built_for_each_python_that_is_promised() -> None:
    promised = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    settings = dict(
        re.findall(r'^(\S+) = "(.*)"$', (ROOT / ".ci" / "cibuildwheel.toml").read_text("utf-8"), re.MULTILINE)
    )
    with_gil = [f"cp3{minor}-*" for minor in promised]
    assert settings["build"].split() == [*with_gil, "cp314t-*", "cp315t-*"]


def test_a_workflow_starts_programs_that_are_there() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert [path.name for path in workflows] == ["docs.yml", "release.yml", "test.yml"]
    for path in workflows:
        text = path.read_text(encoding="utf-8")
        jobs = yaml.safe_load(text)["jobs"]
        assert all("runs-on" in job and job["steps"] for job in jobs.values())
        for name in re.findall(r"(?<![\w/])\.ci/[\w.-]+", text):
            assert (ROOT / name).is_file(), name
        for name in re.findall(r"make ([\w-]+)", text):
            assert f"\n{name}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), name


def test_the_trial_on_bare_systems_finds_the_first_program_of_the_readme() -> None:
    first_block = runpy.run_path(str(ROOT / ".ci" / "first-record"))["first_block"]
    assert first_block(README, "code-block:: python").startswith("import contextlib\nimport shmaccum\n")
    assert first_block(README, "output") == "offset 0\nb'landed'"


def test_an_action_is_named_by_its_commit_and_its_tag() -> None:
    """A tag can be moved to other code."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
        assert used, path.name
        assert [name for name in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", name)] == [], path.name


def test_the_workflow_tests_each_python_that_is_promised() -> None:
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))["jobs"]
    tested = [jobs["test"]["steps"][1]["with"]["python-version"], *jobs["pythons"]["strategy"]["matrix"]["python"]]
    assert sorted(tested, key=lambda version: int(version.strip("t").partition(".")[2])) == [*promised, "3.15t"]


def test_the_site_is_built_as_make_docs_does_and_deployed_from_main_alone() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text(encoding="utf-8"))["jobs"]
    steps = {step.get("uses") or step["run"]: step.get("with") for step in jobs["build"]["steps"]}
    assert "make docs" in steps
    assert {"path": "build/docs"} in steps.values()
    assert jobs["deploy"]["needs"] == "build"
    assert jobs["deploy"]["if"].startswith("github.ref == 'refs/heads/main'")


def test_the_forms_for_issues_parse_and_a_vulnerability_has_a_private_way() -> None:
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    for name in ("bug.yml", "feature.yml"):
        form = yaml.safe_load((folder / name).read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(form)
        ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(set(ids)) == len(ids) > 0
    (private, _) = yaml.safe_load((folder / "config.yml").read_text(encoding="utf-8"))["contact_links"]
    assert private["url"] == project_urls()["Repository"] + "/security/advisories/new"
    assert private["url"] in (ROOT / "SECURITY.rst").read_text(encoding="utf-8")


def test_a_release_publishes_a_tag_that_is_the_version_alone() -> None:
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    assert set(release["jobs"]["publish"]["needs"]) == {"wheels", "check", "elsewhere"}
    commands = {step.get("name"): step.get("run") for step in release["jobs"]["check"]["steps"]}
    check = ["bash", "-c", commands["the tag is the version"]]
    for tag, code in ((f"v{shmaccum.__version__}", 0), ("v999.0", 1)):
        environment = os.environ | {"GITHUB_REF_NAME": tag}
        assert subprocess.run(check, cwd=ROOT, env=environment).returncode == code, tag


def test_a_source_distribution_meets_unknown_warnings_and_a_checkout_none(tmp_path: Path) -> None:
    assert "-Werror" not in warning_flags(tmp_path)
    (tmp_path / ".git").touch()
    assert "-Werror" in warning_flags(tmp_path)


def test_a_page_installs_the_package_from_its_clone() -> None:
    """The package is on no index yet, and another one could have its name. CONTRIBUTING describes the release."""
    pages = [ROOT / "README.rst", *(ROOT / "docs").rglob("*.rst")]
    code = [path for folder in ("shmaccum", "tests") for path in (ROOT / folder).rglob("*.py")]
    asked = re.compile(r"""pip install (-\S+ )*['"]?shmaccum\b|"package": "shmaccum""")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (*pages, *code)
        if path != Path(__file__)
        for line in path.read_text(encoding="utf-8").splitlines()
        if asked.search(line)
    ]
    assert found == []


def test_each_requirement_of_the_tests_has_a_pinned_version_that_it_accepts() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / ".ci" / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    pins = {packaging.utils.canonicalize_name(name): version for name, version in pins.items()}
    extras = ("", "test", "dev", "docs", "spark", "pipelines")
    environments = [{"python_version": "3.11", "python_full_version": "3.11.2", "extra": name} for name in extras]
    wrong = []
    for line in metadata("shmaccum").get_all("Requires-Dist") or []:
        needed = Requirement(line)
        is_used = needed.marker is None or any(map(needed.marker.evaluate, environments))
        pin = pins.get(packaging.utils.canonicalize_name(needed.name), "")
        if is_used and needed.name != "shmaccum" and not (pin and pin in needed.specifier):
            wrong.append((line, pin))
    assert wrong == [], "run make constraints"
