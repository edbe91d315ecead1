"""Makes a bundle of wheels for a machine without network, in parts that any channel takes.

    python scripts/offline_bundle.py OUT --python 3.12 --beside-torch
    python scripts/offline_bundle.py OUT --requirements my.txt --extra vllm==0.23.0

OUT gets ``parts/bundle.00`` and so on, each at most ``--part-size`` MiB, ``manifest.json`` with the
SHA-256 of every wheel and part, and ``unpack.py``. On the other machine, with the three of them in
one folder, ``python unpack.py SITE`` checks the sums, joins the parts and unpacks every wheel into
SITE, which then goes first on PYTHONPATH. Only Python's standard library is needed on either side,
besides pip here. pip judges conditions like ``python_version < "3.12"`` by the Python that runs it:
run this with the other machine's version where an extra package has such.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
MIB = 2**20
PART_MIB = 48
PARTS, MANIFEST, UNPACK = "parts", "manifest.json", "unpack.py"
GLIBC = (39, 38, 36, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
"""Minor versions of glibc that wheels are built for; pip takes none that is not named."""
LEGACY = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
TORCH = ("torch", "torchvision", "torchaudio", "triton", "nvidia-.*", "cuda-.*")
"""What a GPU machine has, in builds of its own."""
BESIDE_TORCH = (*TORCH, "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy")
"""That, and what torch itself brings along."""
DEVELOPMENT = (
    "pytest.*",
    "ruff",
    "pyright",
    "nodeenv",
    "nodejs-wheel-.*",
    "import-linter",
    "grimp",
)
"""What only those need who change the code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make a bundle and print what it has become."""
    arguments = _parser().parse_args(argv)
    wanted = wanted_requirements(arguments)
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder) / "wheels"
        download(wanted, wheels, arguments)
        count = write_bundle(wheels, arguments.out, part_size=arguments.part_size * MIB)
    print(f"{len(wanted)} packages in {count} parts under {arguments.out}")
    print(f"there: python {UNPACK} SITE && export PYTHONPATH=SITE")
    return 0


def wanted_requirements(arguments: argparse.Namespace) -> list[str]:
    """The pinned requirements, and the extra ones with what they need, less what is left out."""
    text = arguments.requirements.read_text()
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    skipped = [*DEVELOPMENT, *arguments.skip, *(BESIDE_TORCH if arguments.beside_torch else ())]
    pinned = without((line for line in lines if line), skipped)
    if not arguments.extra:
        return pinned
    found = without(resolved(arguments.extra, pinned, arguments), skipped)
    known = {_name(one) for one in pinned}
    return [*pinned, *(one for one in found if _name(one) not in known)]


def resolved(
    extra: Sequence[str], pinned: Sequence[str], arguments: argparse.Namespace
) -> list[str]:
    """Packages and all they need, in versions that go with ``pinned``; their wheels stay there."""
    with tempfile.TemporaryDirectory() as folder:
        report, constraints = Path(folder) / "report.json", Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(pinned))
        options = ["--dry-run", "--ignore-installed", "--target", folder, "--report", str(report)]
        _pip("install", [*options, "--constraint", str(constraints), *extra], arguments)
        packages = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    return [f"{one['name']}=={one['version']}" for one in packages]


def without(requirements: Iterable[str], names: Iterable[str]) -> list[str]:
    """The requirements whose name matches none of the patterns."""
    pattern = re.compile("|".join(f"(?:{name})" for name in names) or "(?!)", re.IGNORECASE)
    return [one for one in requirements if not pattern.fullmatch(_name(one))]


def platforms(machine: str) -> list[str]:
    """Every platform tag that a Linux machine takes, the newest first."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC]
    return [*tags, *(f"{name}_{machine}" for name in LEGACY), "any"]


def download(wanted: Sequence[str], wheels: Path, arguments: argparse.Namespace) -> None:
    """Fetch the wheels; nothing is built, and nothing is fetched that was not asked for."""
    _pip("download", ["--no-deps", "--dest", str(wheels), *wanted], arguments)


def _pip(verb: str, words: Sequence[str], arguments: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--python-version", arguments.python]
    for tag in platforms(arguments.machine):
        command += ["--platform", tag]
    if arguments.wheels:
        command += ["--no-index", "--find-links", str(arguments.wheels)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip {verb} failed:\n{done.stderr.strip()}")


def write_bundle(wheels: Path, out: Path, *, part_size: int) -> int:
    """Write parts, manifest and unpacker; how many parts there are."""
    parts_dir = out / PARTS
    parts_dir.mkdir(parents=True, exist_ok=True)
    for old in parts_dir.iterdir():  # a bundle that was longer must not leave its end behind
        old.unlink()
    found = sorted(wheels.glob("*.whl"))
    with tempfile.TemporaryFile() as joined:
        with tarfile.open(fileobj=joined, mode="w") as archive:
            for wheel in found:
                archive.add(wheel, arcname=wheel.name, filter=_plain)
        joined.seek(0)
        pieces = iter(lambda: joined.read(part_size), b"")
        parts = dict(_written(pieces, parts_dir))
    sums = {wheel.name: _sum(wheel.read_bytes()) for wheel in found}
    text = json.dumps({"wheels": sums, "parts": parts}, indent=1)
    (out / MANIFEST).write_text(text + "\n")
    (out / UNPACK).write_text((Path(__file__).parent / "unpack_bundle.py").read_text())
    return len(parts)


def _written(pieces: Iterable[bytes], folder: Path) -> Iterator[tuple[str, str]]:
    for number, piece in enumerate(pieces):
        path = folder / f"bundle.{number:02d}"
        path.write_bytes(piece)
        yield path.name, _sum(piece)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner and time, so that the same wheels make the same bundle."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o644
    return entry


def _name(requirement: str) -> str:
    """A package's name as indexes compare it."""
    name = re.split(r"[\s\[=<>!~;@]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Make a bundle of wheels for an offline machine.")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--requirements", type=Path, default=ROOT / "requirements.lock")
    parser.add_argument(
        "--extra", nargs="+", default=[], metavar="REQUIREMENT", help="vllm==0.23.0"
    )
    parser.add_argument("--python", default="3.12", metavar="X.Y", help="of the other machine")
    parser.add_argument("--machine", default="x86_64", help="its processor: x86_64 or aarch64")
    parser.add_argument("--part-size", type=int, default=PART_MIB, metavar="MIB")
    parser.add_argument(
        "--beside-torch", action="store_true", help="leave out torch, CUDA and what torch brings"
    )
    parser.add_argument("--skip", nargs="+", default=[], metavar="NAME", help="patterns of names")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="take wheels from here alone")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
