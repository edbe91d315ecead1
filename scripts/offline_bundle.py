"""Creates a bundle of wheels for a machine without network, split into small files.

    python scripts/offline_bundle.py OUT --python 3.12 --beside-torch
    python scripts/offline_bundle.py OUT --requirements my.txt --extra vllm==0.23.0
    python scripts/offline_bundle.py OUT --requirements my.in --dry_run > my.txt

OUT gets ``parts/bundle.00`` and so on, each at most ``--part-size`` MiB, ``manifest.json`` with the
SHA-256 of every wheel and part, and ``unpack.py``. On the other machine, with the three of them in
one folder, ``python unpack.py SITE`` verifies the sums, joins the parts and unpacks every wheel
into SITE, which then goes first on PYTHONPATH. That machine needs only Python; this one needs pip,
and uv for ``--extra`` and files ending in ``.in``, which have demands instead of pinned versions:
uv resolves for the other machine's Python and platform, keeps the versions of the lock where the
extra packages allow them, and what differs is printed. Only packages with a wheel are considered,
and those that a file names with ``--no-binary NAME``: their wheels are built here.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
MIB = 2**20
PART_MIB = 48
PARTS, MANIFEST, UNPACK = "parts", "manifest.json", "unpack.py"
GLIBC = range(39, 4, -1)
"""Minor glibc versions of wheels; pip accepts only platform tags that are listed."""
LEGACY = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
TORCH = ("torch", "torchvision", "torchaudio", "triton", "nvidia-.*", "cuda-.*")
"""Packages that a GPU machine has in its own builds."""
BESIDE_TORCH = (
    *TORCH,
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "setuptools",
    "sympy",
)
"""``TORCH`` and the dependencies of torch."""
NO_BINARY = re.compile(r"^--no-binary \S+", re.MULTILINE)
"""Lines of a requirements file that name packages without a wheel, as pip reads them."""
LOCKS = tuple(ROOT / "requirements" / f"{name}.lock" for name in ("core", "train", "torch"))
"""The packages of ``grpo-cl[train,users]``; development tools have a lock of their own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Create a bundle and print a summary."""
    arguments = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        built, wheels = Path(folder) / "built", Path(folder) / "wheels"
        text = arguments.requirements.read_text() if arguments.requirements else ""
        build_wheels(text, built, arguments)
        requirements = bundle_requirements(arguments, built)
        if arguments.dry_run:
            print("\n".join([*NO_BINARY.findall(text), *requirements]))
            return 0
        download(requirements, wheels, built, arguments)
        count = write_bundle(wheels, arguments.out, part_size=arguments.part_size * MIB)
    print(f"{len(requirements)} packages in {count} parts under {arguments.out}")
    print(f"there: python {UNPACK} SITE && export PYTHONPATH=SITE")
    return 0


def bundle_requirements(arguments: argparse.Namespace, built: Path) -> list[str]:
    """The pinned requirements and the extra ones with dependencies, without skipped packages."""
    given: Path | None = arguments.requirements
    files = [given] if given else LOCKS
    pinned = [entry for file in files for entry in read_requirements(file.read_text())]
    demands = [] if given else project_requirements()
    if given and given.suffix == ".in":
        pinned, demands = [], pinned
    skipped = [*arguments.skip, *(BESIDE_TORCH if arguments.beside_torch else ())]
    if pinned and not arguments.extra:
        return without(pinned, skipped)
    found = resolved([*arguments.extra, *demands], pinned, built, arguments)
    for entry in sorted({*pinned} - {*found}):
        new = next((other for other in found if _name(other) == _name(entry)), "left out")
        print(f"{entry} of the lock becomes {new}", file=sys.stderr)
    return without(found, skipped)


def read_requirements(text: str) -> list[str]:
    """The entries of a lock or a requirements file, without comments, sums and included files."""
    lines = (line.partition("#")[0].rstrip("\\ \n") for line in text.splitlines())
    return [line for line in lines if line and not line.lstrip().startswith("-")]


def build_wheels(text: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Build the packages of ``--no-binary NAME`` lines, which have no wheel, in their versions."""
    names = {_name(line.split()[1]) for line in NO_BINARY.findall(text)}
    entries = [entry for entry in read_requirements(text) if _name(entry) in names]
    folder.mkdir()
    if not entries:
        return
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command += [*_sources(folder, arguments), "--no-deps", "--wheel-dir", str(folder)]
    _run([*command, *entries], "pip wheel failed")
    for wheel in folder.iterdir():
        if not wheel.name.endswith("-none-any.whl"):
            raise SystemExit(
                f"{wheel.name} was built for this machine; --no-binary is for pure Python packages"
            )


def project_requirements() -> list[str]:
    """What pyproject.toml demands of the versions in ``LOCKS``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    entries = [*project["dependencies"], *extras["tau2"], *extras["train"], *extras["users"]]
    return [entry for entry in entries if not entry.startswith("grpo-cl[")]


def resolved(
    demands: Sequence[str], pinned: Sequence[str], built: Path, arguments: argparse.Namespace
) -> list[str]:
    """Resolve ``demands`` and the packages of ``pinned``, in its versions if demands allow them."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if uv is None:
        raise SystemExit("resolving needs uv, which is not installed; run `pip install uv`")
    with tempfile.TemporaryDirectory() as folder:
        wanted, output = Path(folder) / "wanted.in", Path(folder) / "bundle.txt"
        wanted.write_text("\n".join([*demands, *map(_name, pinned)]))
        output.write_text("\n".join(pinned))  # uv prefers the versions of its output file
        command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", str(wanted)]
        command += ["--python-version", arguments.python, "--output-file", str(output)]
        command += ["--python-platform", f"{arguments.machine}-manylinux_2_{GLIBC[0]}"]
        command += ["--only-binary", ":all:"]  # as the download: some versions have no wheel
        command += _sources(built, arguments)
        _run(command, "uv found no versions for the bundle")
        return read_requirements(output.read_text())


def without(requirements: Iterable[str], names: Iterable[str]) -> list[str]:
    """The requirements whose name matches none of the patterns."""
    pattern = re.compile("|".join(f"(?:{name})" for name in names) or "(?!)", re.IGNORECASE)
    return [entry for entry in requirements if not pattern.fullmatch(_name(entry))]


def platforms(machine: str) -> list[str]:
    """The platform tags that a Linux machine supports, newest first."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC]
    return [*tags, *(f"{name}_{machine}" for name in LEGACY), "any"]


def download(
    requirements: Sequence[str], wheels: Path, built: Path, arguments: argparse.Namespace
) -> None:
    """Download the wheels, without building and without further dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--python-version", arguments.python]
    for tag in platforms(arguments.machine):
        command += ["--platform", tag]
    command += _sources(built, arguments)
    _run([*command, "--no-deps", "--dest", str(wheels), *requirements], "pip download failed")


def _sources(built: Path, arguments: argparse.Namespace) -> list[str]:
    """Options of uv and pip: where wheels are searched."""
    folder = arguments.wheels
    given = ["--no-index", "--find-links", str(folder)] if folder else []
    return [*given, "--find-links", str(built)]


def _run(command: Sequence[str], failure: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{failure}:\n{process.stderr.strip()}")


def write_bundle(wheels: Path, out: Path, *, part_size: int) -> int:
    """Write parts, manifest and unpacker; returns the number of parts."""
    parts_dir = out / PARTS
    parts_dir.mkdir(parents=True, exist_ok=True)
    for old in parts_dir.iterdir():  # remove the parts of an earlier, longer bundle
        old.unlink()
    wheel_files = sorted(wheels.glob("*.whl"))
    with tempfile.TemporaryFile() as joined:
        with tarfile.open(fileobj=joined, mode="w") as archive:
            for wheel in wheel_files:
                archive.add(wheel, arcname=wheel.name, filter=_reproducible)
        joined.seek(0)
        chunks = iter(lambda: joined.read(part_size), b"")
        parts = dict(_write_parts(chunks, parts_dir))
    sums = {wheel.name: _sum(wheel.read_bytes()) for wheel in wheel_files}
    text = json.dumps({"wheels": sums, "parts": parts}, indent=1)
    (out / MANIFEST).write_text(text + "\n")
    (out / UNPACK).write_text((Path(__file__).parent / "unpack_bundle.py").read_text())
    return len(parts)


def _write_parts(chunks: Iterable[bytes], folder: Path) -> Iterator[tuple[str, str]]:
    for number, chunk in enumerate(chunks):
        path = folder / f"bundle.{number:02d}"
        path.write_bytes(chunk)
        yield path.name, _sum(chunk)


def _reproducible(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry without owner and time, so that the same wheels give the same bundle."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644
    return entry


def _name(requirement: str) -> str:
    """The normalized name of a package."""
    name = re.split(r"[\s\[=<>!~;@]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Create a bundle of wheels for a machine without network."
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument(
        "--requirements",
        type=Path,
        metavar="FILE",
        help="pinned packages, or demands if it ends in .in; default: the locks of "
        "grpo-cl[train,users]",
    )
    parser.add_argument(
        "--extra",
        nargs="+",
        default=[],
        metavar="REQUIREMENT",
        help="further packages, such as vllm==0.23.0",
    )
    parser.add_argument(
        "--python", default="3.12", metavar="X.Y", help="Python version of the other machine"
    )
    parser.add_argument("--machine", default="x86_64", help="its architecture: x86_64 or aarch64")
    parser.add_argument("--part-size", type=int, default=PART_MIB, metavar="MIB")
    parser.add_argument(
        "--beside-torch", action="store_true", help="leave out torch, CUDA and torch's dependencies"
    )
    parser.add_argument(
        "--skip", nargs="+", default=[], metavar="NAME", help="name patterns to leave out"
    )
    parser.add_argument(
        "--dry_run", "--dry-run", action="store_true", help="print the packages and stop"
    )
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="use only wheels of this folder")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
