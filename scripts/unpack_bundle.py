"""Unpacks a bundle of wheels into a folder for PYTHONPATH: python unpack.py SITE.

Run it in the folder of ``manifest.json``; the parts are in the same folder or in ``parts``. Needs
only Python 3.8.
"""

import hashlib
import json
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Sequence, Tuple  # noqa: UP035  # Python 3.8


def main(arguments: Sequence[str]) -> None:
    """Verify, join and unpack the parts."""
    if len(arguments) != 1:
        raise SystemExit("usage: python unpack.py SITE")
    here, site = Path(__file__).resolve().parent, Path(arguments[0])
    manifest = json.loads((here / "manifest.json").read_text())
    site.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=str(site.parent)) as folder:
        joined = Path(folder) / "bundle.tar"
        with joined.open("wb") as target:
            # In the manifest's order: by name, bundle.100 would follow bundle.10.
            for name, expected in manifest["parts"].items():
                target.write(read_verified(find(here, name), expected))
        with tarfile.open(str(joined)) as archive:
            for entry in archive:
                wheel = Path(folder) / Path(entry.name).name
                source = archive.extractfile(entry)
                assert source is not None, "a bundle has only files"
                with source, wheel.open("wb") as target:
                    shutil.copyfileobj(source, target)
                read_verified(wheel, manifest["wheels"][wheel.name])
                unpack(wheel, site)
                wheel.unlink()
    print(f"{len(manifest['wheels'])} packages in {site}")


def find(here: Path, name: str) -> Path:
    """The path of a part, beside this file or in ``parts``."""
    for path in (here / "parts" / name, here / name):
        if path.is_file():
            return path
    raise SystemExit(f"part {name} is missing; copy it to {here}")


def read_verified(path: Path, expected: str) -> bytes:
    """The bytes of a file, after verifying its SHA-256."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != expected:
        raise SystemExit(f"{path} is damaged; copy it again")
    return data


def unpack(wheel: Path, site: Path) -> None:
    """Install a wheel without scripts; packages of ``.data`` folders go to the root."""
    with zipfile.ZipFile(str(wheel)) as archive:
        for entry in archive.infolist():
            parts = target_parts(Path(entry.filename).parts)
            if not parts or entry.is_dir():
                continue
            target = site.joinpath(*parts)
            if site.resolve() not in target.resolve().parents:
                raise SystemExit(f"{wheel.name} would write outside {site}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            if (entry.external_attr >> 16) & 0o111:  # keep the executable bit
                target.chmod(0o755)


def target_parts(parts: Tuple[str, ...]) -> Tuple[str, ...]:  # noqa: UP006  # Python 3.8
    """The target path of an entry, in parts; empty for scripts and headers."""
    if not parts or not parts[0].endswith(".data"):
        return parts
    return parts[2:] if parts[1:2] in (("purelib",), ("platlib",)) else ()


if __name__ == "__main__":
    main(sys.argv[1:])
