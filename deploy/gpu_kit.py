"""`python -m deploy.gpu_kit`: a folder for a GPU host that has CUDA torch and no network.

It has the wheels of `requirements/gpu-native.txt` without the parts that are never imported, ROSE, its tests and a
model's shape. Its `accept.sh` unpacks it and proves ROSE on that host.
"""

import argparse
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from rose.accept.report import COMMIT, ROOT, commit, phase
from rose.accept.stages import engine_models
from rose.terminal import echo

REQUIREMENTS = ROOT / "requirements" / "gpu-native.txt"
LIMIT_BYTES = 60_000_000
DROPPED = (  #: Paths below the folder of packages that no engine or acceptance stage imports.
    "sglang/multimodal_gen",
    "sglang/test",
    "sglang/benchmark",
    "sglang/srt/rust_extensions/_bench*",
    "sglang/srt/rust_extensions/_grpc*",
    "jedi/third_party",
    "pycountry/locales",
    "mistral_common/data",
    "tests",
    "*/tests",
)
PROJECT = (  #: Parts of the checkout that run there or that tests read, and serving traffic.
    "rose",
    "benchmarks",
    "sql",
    "tests",
    "requirements",
    "pyproject.toml",
    "LICENSE",
    "sample_traces/__init__.py",
    "sample_traces/README.md",
    "sample_traces/bursty.csv",
)
_GLIBC_MINOR = 34  #: The newest glibc that a wheel may need.
_ARCHIVE, _MODEL = "rose-gpu-kit.tar.xz", "models/llama-8b"

_ACCEPT = f"""#!/bin/sh
# Unpacks the kit, once, and proves ROSE on this host's GPU: sh accept.sh [--quick] [--only STAGE] [--json FILE]
# `sh accept.sh -m MODULE ...` runs another module of it. ROSE_KIT is where it is unpacked, /tmp/rose-gpu-kit otherwise;
# ROSE_PROJECT is a checkout of ROSE to take instead of the kit's own.
set -e
archive=$(cd "$(dirname "$0")" && pwd)/{_ARCHIVE}
folder=${{ROSE_KIT:-/tmp/rose-gpu-kit}}
if [ ! -f "$folder/unpacked" ] || [ "$archive" -nt "$folder/unpacked" ]; then
    echo "unpacking to $folder ..." >&2
    rm -rf "$folder/site" "$folder/project"
    mkdir -p "$folder"
    tar -xJf "$archive" -C "$folder"
    # On all cores now, instead of one after the other as engines import it.
    python3 -m compileall -qq -j 0 "$folder/site" "$folder/project" >/dev/null 2>&1 || true
    touch "$folder/unpacked"
fi
project=${{ROSE_PROJECT:-$folder/project}}
export PYTHONPATH="$project:$folder/site${{PYTHONPATH:+:$PYTHONPATH}}" PATH="$folder/site/bin:$PATH"
export HF_HUB_OFFLINE=1 TRITON_CACHE_DIR="${{TRITON_CACHE_DIR:-$folder/triton}}"
kernels=$(python3 -c 'import importlib.util; print(importlib.util.find_spec("sgl_kernel") is not None)')
[ "$kernels" = True ] || export ROSE_NATIVE_KERNELS=1
[ "$1" = -m ] && exec python3 -P "$@"
exec python3 -P -m rose.cli accept "$@"
"""

_README = f"""ROSE for a GPU host with no network.

It needs Linux on {{machine}} with Python {{python}}, and a CUDA build of torch with its triton, torchvision, numpy,
scipy, numba, aiohttp, safetensors, tokenizers and cuda-bindings. Carry this folder there and run

    sh accept.sh --quick

which unpacks it to /tmp/rose-gpu-kit (ROSE_KIT names another folder) and proves ROSE on the first GPU, a stage at a
time. Without --quick it takes twenty minutes at most; --only STAGE runs one stage, --json FILE keeps the report. What
rollouts beside live requests cost is told by two stages, in four and eight minutes:

    sh accept.sh --only beside --json beside.json
    sh accept.sh --only busy_engines --json busy_engines.json

Engines of this kit run without the package sglang-kernel, with plain torch and Triton: that shows that the mechanisms
work on the card; its speed is not SGLang's. Where sglang-kernel is installed, it is used.

Two engines that share the card for longer:

    sh accept.sh -m benchmarks.coserve --gpu 0 --model /tmp/rose-gpu-kit/{_MODEL} --json coserve.json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 1 if pip failed or the folder is larger than LIMIT_BYTES."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-kit", metavar="FOLDER")
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="of the GPU host; 3.12 if left out")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels that are there already: none is fetched")
    given = parser.parse_args(argv)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    # The result's disk has room for the unpacked files.
    with tempfile.TemporaryDirectory(prefix="rose-gpu-kit-", dir=given.out.parent) as scratch:
        wheels = given.wheels or Path(scratch) / "wheels"
        if given.wheels is None:
            with phase(f"wheels for Python {given.python}"):
                code = download(wheels, given.python)
            if code:
                echo(f"pip could not fetch the wheels of {REQUIREMENTS}: what it wrote above says why", err=True)
                return 1
        size = gather(sorted(wheels.glob("*.whl")), Path(scratch) / "kit", given.out, given.python)
    echo(f"{given.out}: {size / 1e6:.1f} MB of {LIMIT_BYTES / 1e6:.0f} MB at most")
    return int(size > LIMIT_BYTES)


def platforms(machine: str) -> list[str]:
    newest = [f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC_MINOR, 4, -1)]
    return [*newest, *(f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux"))]


def download(folder: Path, python: str) -> int:
    """Fetch the wheels from pip's package index; return pip's exit code."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [f"--python-version={python}", f"--dest={folder}", f"--requirement={REQUIREMENTS}"]
    command += [f"--platform={tag}" for tag in platforms(platform.machine())]
    return subprocess.run(command, check=False, stdout=sys.stderr).returncode


def gather(wheels: Sequence[Path], stage: Path, out: Path, python: str) -> int:
    """Gather `wheels` and ROSE in `stage`, pack them into `out`, and return its size in bytes."""
    site = stage / "site"
    with phase(f"unpacking {len(wheels)} wheels"):
        for wheel in wheels:
            unpack(wheel, site)
        drop(site)
        strip(site)
    add_project(stage / "project")
    describe_project(site)
    engine_models.write(stage / _MODEL, engine_models.LARGE)
    with phase("packing"):
        out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out / _ARCHIVE, "w:xz", preset=6) as archive:
            for part in sorted(stage.iterdir()):
                archive.add(part, part.name, filter=_of_nobody)
    (out / "accept.sh").write_text(_ACCEPT)
    (out / "README.txt").write_text(_README.format(machine=platform.machine(), python=python))
    return sum(path.stat().st_size for path in out.iterdir())


def unpack(wheel: Path, site: Path) -> None:
    """Unpack a wheel as an installer does: packages to `site`, programs to its `bin`."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for data in site.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, site, dirs_exist_ok=True)
        if (data / "scripts").is_dir():
            shutil.copytree(data / "scripts", site / "bin", dirs_exist_ok=True)
        shutil.rmtree(data)
    for program in (site / "bin").glob("*"):
        program.chmod(0o755)


def drop(site: Path) -> None:
    for path in sorted(site.rglob("*")):  # A folder comes before its files.
        name = path.relative_to(site).as_posix()
        if path.exists() and any(fnmatch(name, pattern) for pattern in DROPPED):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def strip(site: Path) -> None:
    """Remove unneeded symbols from shared objects, where this host has `strip`, which leaves other files alone."""
    program = shutil.which("strip")
    if program is None:
        return
    shared = [path for path in sorted(site.rglob("*.so*")) if path.is_file()]
    if shared:
        subprocess.run([program, "--strip-unneeded", *shared], check=False, stderr=subprocess.DEVNULL)


def add_project(folder: Path) -> None:
    for name in PROJECT:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "results"))
        else:
            shutil.copy2(source, target)
    (folder / COMMIT).write_text(f"{commit()}\n")


def describe_project(site: Path) -> None:
    """Write ROSE's metadata, by which SGLang finds its entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in of.items()) for group, of in groups.items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


if __name__ == "__main__":
    sys.exit(main())
