"""The lowest versions that pip may install: none has a security hole that is in the table."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
#: Package, first version without the hole, and advisory. A package whose last affected version is all that is known has
#: the release after that.
HOLES = [
    ("aiohttp", "3.14.4", "CVE-2026-111064"),
    ("aiosmtpd", "1.4.6", "CVE-2024-34083"),
    ("authlib", "1.7.1", "CVE-2026-44681"),
    ("cryptography", "50.0.0", "CVE-2026-69247"),
    ("flask-cors", "6.0.0", "CVE-2024-6839"),
    ("fsspec", "2026.6.0", "CVE-2026-104851"),
    ("jinja2", "3.1.6", "CVE-2025-27516"),
    ("joserfc", "1.7.3", "CVE-2026-75509"),
    ("pyarrow", "23.0.1", "CVE-2026-25087"),
    ("pytest", "9.0.3", "CVE-2025-71176"),
    ("ray", "2.54.0", "CVE-2026-27482"),
    ("sglang", "0.5.21", "CVE-2026-93034"),
    ("starlette", "1.3.1", "PYSEC-2026-249"),
    ("streamlit", "1.53.1", "CVE-2026-10804"),
    ("torch", "2.11.0", "CVE-2026-4538"),
    ("transformers", "5.3.0", "CVE-2026-5241"),
]


def requirements() -> list[Requirement]:
    """Return the direct dependencies, of the base install and of all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return [one for one in map(Requirement, texts) if one.name != project["name"]]


def lowest(requirement: Requirement) -> Version:
    """Return the lowest version that the requirement allows."""
    return max(Version(one.version) for one in requirement.specifier if one.operator in (">=", "=="))


def test_each_dependency_is_named_once_with_a_lower_bound() -> None:
    names = [canonicalize_name(one.name) for one in requirements()]
    assert sorted(set(names)) == sorted(names)
    assert [one.name for one in requirements() if not {">=", "=="} & {part.operator for part in one.specifier}] == []


@pytest.mark.parametrize(("package", "fixed", "advisory"), HOLES)
def test_the_lowest_version_of_a_dependency_has_no_known_hole(package: str, fixed: str, advisory: str) -> None:
    (requirement,) = (one for one in requirements() if canonicalize_name(one.name) == package)
    assert lowest(requirement) >= Version(fixed), (
        f"{requirement} allows versions with {advisory}: raise its lower bound"
    )


def test_s3fs_and_fsspec_go_together() -> None:
    """Each s3fs wants the fsspec of its own version."""
    bounds = {one.name: lowest(one) for one in requirements()}
    assert bounds["s3fs"] == bounds["fsspec"]


@pytest.mark.parametrize("file", ["constraints-cpu.txt", "gpu-native.txt", "sglang-cpu-nodeps.txt"])
def test_pinned_versions_are_allowed(file: str) -> None:
    lines = (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(pin.name): lowest(pin) for pin in map(Requirement, filter(_is_pin, lines))}
    assert pins
    wanted = {canonicalize_name(one.name): one for one in requirements()}
    assert [
        f"{wanted[name]}, pinned at {pin}"
        for name, pin in pins.items()
        if name in wanted and pin not in wanted[name].specifier
    ] == []


def _is_pin(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")
