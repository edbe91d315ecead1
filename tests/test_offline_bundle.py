import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from offline_bundle import MANIFEST, PARTS, UNPACK, main, without, write_bundle

MIB = 2**20


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "alpha", {"alpha/__init__.py": "import beta\nNAME = 'alpha ' + beta.NAME\n"})
    wheel(folder, "beta", {"beta-1.0.data/platlib/beta/__init__.py": "NAME = 'beta'\n"})
    wheel(folder, "torch", {"torch.py": "NAME = 'not ours'\n"})
    needs = "Requires-Dist: beta\nRequires-Dist: torch\n"
    wheel(folder, "gamma", {"gamma.py": "import beta\n", "gamma.bin": "#!x\n"}, needs)
    return folder


def wheel(folder: Path, name: str, files: dict[str, str], needs: str = "") -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}"
    tags = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": tags}.items():
            entry = zipfile.ZipInfo(place)
            entry.external_attr = (0o755 if place.endswith(".bin") else 0o644) << 16
            archive.writestr(entry, text)
        archive.writestr(f"{info}/RECORD", "")
    return path


def bundled(tmp_path: Path, index: Path, lock: str, *words: str) -> Path:
    requirements = tmp_path / "lock.txt"
    requirements.write_text(lock)
    out = tmp_path / "out"
    options = ["--requirements", str(requirements), "--wheels", str(index), *words]
    assert main([str(out), *options]) == 0
    return out


def unpacked(bundle: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(bundle / UNPACK), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_was_bundled_is_imported_elsewhere(tmp_path: Path, index: Path):
    out = bundled(tmp_path, index, "alpha==1.0\nbeta==1.0  # why\ntorch==1.0\n", "--beside-torch")
    site = tmp_path / "there" / "site"
    assert unpacked(out, site).returncode == 0
    code = "import alpha; print(alpha.NAME)"
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "alpha beta\n"
    assert not (site / "torch.py").exists()


def test_an_extra_package_brings_what_it_needs_but_not_torch(tmp_path: Path, index: Path):
    out = bundled(tmp_path, index, "alpha==1.0\n", "--beside-torch", "--extra", "gamma")
    names = json.loads((out / MANIFEST).read_text())["wheels"]
    assert sorted(name.split("-")[0] for name in names) == ["alpha", "beta", "gamma"]
    site = tmp_path / "site"
    assert unpacked(out, site).returncode == 0
    assert (site / "gamma.bin").stat().st_mode & 0o111, "programs stay programs"


def test_parts_are_no_larger_than_asked_and_any_damage_is_named(tmp_path: Path, index: Path):
    assert write_bundle(index, tmp_path, part_size=2048) > 3
    assert write_bundle(index, tmp_path, part_size=4096) == len(list((tmp_path / PARTS).iterdir()))
    parts = sorted((tmp_path / PARTS).iterdir())
    assert all(part.stat().st_size <= 4096 for part in parts)
    for part in parts:
        part.rename(tmp_path / part.name)  # beside the script they are found too
    assert unpacked(tmp_path, tmp_path / "site").returncode == 0
    (tmp_path / parts[1].name).write_bytes(b"something else")
    assert f"{parts[1].name} is damaged" in unpacked(tmp_path, tmp_path / "site").stderr
    (tmp_path / parts[1].name).unlink()
    assert f"part {parts[1].name} is missing" in unpacked(tmp_path, tmp_path / "site").stderr


def test_the_same_wheels_make_the_same_bundle(tmp_path: Path, index: Path):
    for name in ("one", "two"):
        write_bundle(index, tmp_path / name, part_size=MIB)
    first, second = ((tmp_path / name / MANIFEST).read_text() for name in ("one", "two"))
    assert first == second


def test_a_wheel_that_would_write_elsewhere_is_refused(tmp_path: Path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "evil", {"../outside.py": ""})
    write_bundle(wheels, tmp_path, part_size=MIB)
    done = unpacked(tmp_path, tmp_path / "site")
    assert "would write outside" in done.stderr
    assert not (tmp_path / "outside.py").exists()


def test_names_are_left_out_by_whole_names_however_they_are_spelled():
    given = ["torch==2.0", "torch_geometric==1", "NVIDIA_cublas-cu12==12", "Jinja2==3"]
    assert without(given, ["torch", "nvidia-.*"]) == ["torch_geometric==1", "Jinja2==3"]


def test_a_package_that_cannot_be_had_ends_with_what_pip_says(tmp_path: Path, index: Path):
    with pytest.raises(SystemExit, match="delta"):
        bundled(tmp_path, index, "delta==1.0\n")
