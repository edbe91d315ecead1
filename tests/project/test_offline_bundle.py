import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from offline_bundle import (
    MANIFEST,
    PARTS,
    ROOT,
    UNPACK,
    main,
    read_requirements,
    without,
    write_bundle,
)

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


@pytest.mark.slow
def test_an_extra_package_brings_what_it_needs_but_not_torch(tmp_path: Path, index: Path):
    out = bundled(tmp_path, index, "alpha==1.0\n", "--beside-torch", "--extra", "gamma")
    names = json.loads((out / MANIFEST).read_text())["wheels"]
    assert sorted(name.split("-")[0] for name in names) == ["alpha", "beta", "gamma"]
    site = tmp_path / "site"
    assert unpacked(out, site).returncode == 0
    assert (site / "gamma.bin").stat().st_mode & 0o111, "programs stay programs"


def test_bundle_of_more_than_100_parts_unpacks(tmp_path: Path, index: Path):
    assert write_bundle(index, tmp_path, part_size=64) > 100
    site = tmp_path / "site"
    result = unpacked(tmp_path, site)
    assert result.returncode == 0, result.stderr
    assert (site / "alpha" / "__init__.py").is_file()


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


def write_source(folder: Path, name: str) -> None:
    """A package without a wheel, as an archive with its build backend."""
    project = folder / f"{name}-1.0"
    project.mkdir()
    (project / f"{name}.py").write_text("")
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (project / "backend.py").write_text(
        "import zipfile\n"
        "def build_wheel(folder, *_):\n"
        f"    name, info = '{name}-1.0-py3-none-any.whl', '{name}-1.0.dist-info'\n"
        "    with zipfile.ZipFile(f'{folder}/{name}', 'w') as wheel:\n"
        f"        wheel.writestr('{name}.py', '')\n"
        f"        meta = 'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n'\n"
        "        wheel.writestr(info + '/METADATA', meta)\n"
        "        tags = 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'\n"
        "        wheel.writestr(info + '/WHEEL', tags)\n"
        "        wheel.writestr(info + '/RECORD', '')\n"
        "    return name\n"
    )
    with tarfile.open(folder / f"{name}-1.0.tar.gz", "w:gz") as archive:
        archive.add(project, arcname=project.name)


def test_a_package_without_a_wheel_is_built_where_the_list_names_it(tmp_path: Path):
    index = tmp_path / "index"
    index.mkdir()
    wheel(index, "beta", {"beta.py": ""})
    write_source(index, "epsilon")
    lock = "beta==1.0\nepsilon==1.0\n"
    with pytest.raises(SystemExit, match="epsilon"):
        bundled(tmp_path, index, lock)
    out = bundled(tmp_path, index, f"--no-binary epsilon\n{lock}")
    names = json.loads((out / MANIFEST).read_text())["wheels"]
    assert sorted(names) == ["beta-1.0-py3-none-any.whl", "epsilon-1.0-py3-none-any.whl"]


@pytest.mark.slow
def test_demands_are_resolved_to_a_list(
    tmp_path: Path, index: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "gamma.in").write_text("# what we want\ngamma>=1\n")
    options = ["--requirements", str(tmp_path / "gamma.in"), "--wheels", str(index), "--dry_run"]
    assert main([str(tmp_path / "out"), *options]) == 0
    assert capsys.readouterr().out.split() == ["beta==1.0", "gamma==1.0", "torch==1.0"]


def documented_bundles() -> list[list[str]]:
    text = (ROOT / "docs" / "gpu.md").read_text()
    prefix = "python scripts/offline_bundle.py "
    lines = [line.removeprefix(prefix).split() for line in text.splitlines() if prefix in line]
    return [words for words in lines if "--dry_run" not in words]


def list_of(words: list[str]) -> Path | None:
    is_list = "--requirements" in words
    return ROOT / words[words.index("--requirements") + 1] if is_list else None


def test_bundle_of_the_locks_has_no_development_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([str(tmp_path), "--python", "3.12", "--beside-torch", "--dry_run"]) == 0
    names = {line.partition("==")[0] for line in capsys.readouterr().out.split()}
    assert {"pydantic", "transformers", "inspect-evals", "openai"} <= names
    assert not {"torch", "setuptools", "pytest", "ruff", "hypothesis", "uv"} & names


@pytest.mark.slow
@pytest.mark.timeout(600)  # it asks the package index about some 250 packages
def test_documented_bundles_can_be_resolved(capsys: pytest.CaptureFixture[str]):
    commands = documented_bundles()
    assert any("vllm==0.23.0" in words for words in commands)
    for words in [words for words in commands if list_of(words) is None]:
        assert main([*words, "--dry_run"]) == 0
        names = {line.partition("==")[0] for line in capsys.readouterr().out.split()}
        assert {"pydantic", "transformers"} <= names
        assert ("vllm" in names) == ("vllm==0.23.0" in words)


def test_every_list_of_an_engine_is_documented():
    documented = {list_of(words) for words in documented_bundles()} - {None}
    assert documented == {*(ROOT / "requirements" / "gpu").glob("*.txt")}
    for path in documented:
        assert path is not None
        names = {entry.partition("==")[0] for entry in read_requirements(path.read_text())}
        assert {"torch", "vllm"} < names


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["skyrl", "unsloth", "verl"])
def test_the_list_of_an_engine_is_a_resolution_of_its_demands(
    engine: str, capsys: pytest.CaptureFixture[str]
):
    pinned = ROOT / "requirements" / "gpu" / f"{engine}.txt"
    demands = read_requirements(pinned.with_suffix(".in").read_text())
    assert main(["OUT", "--requirements", str(pinned), "--dry_run", "--extra", *demands]) == 0
    assert capsys.readouterr().out == pinned.read_text()
