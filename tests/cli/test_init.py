import importlib.util
import inspect
import sys
from pathlib import Path

import pytest

from grpo_cl.cli import main
from grpo_cl.cli.templates import TEMPLATES


def run_tests_of(file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> int:
    """Call the test functions of a file with the fixtures they ask for."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fixtures = {"capsys": capsys, "tmp_path": tmp_path}
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    for test in tests:
        test(**{name: fixtures[name] for name in inspect.signature(test).parameters})
    return len(tests)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_written_file_passes_its_own_test(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "project"
    assert main(["init", kind, f"my_{kind}", "--out", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert f"pytest test_my_{kind}.py" in printed
    assert "grpo-cl " in printed.partition("pytest")[2]
    modules = set(sys.modules)
    assert run_tests_of(folder / f"test_my_{kind}.py", capsys, tmp_path) == 1
    for name in set(sys.modules) - modules:
        if name.startswith("grpo_cl_file_"):
            del sys.modules[name]


def test_a_file_that_exists_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["init", "reward", "halved", "--out", str(tmp_path)]
    assert main(words) == 0
    (tmp_path / "halved.py").write_text("mine")
    assert main(words) == 2
    assert "exist already; choose another name" in capsys.readouterr().err
    assert (tmp_path / "halved.py").read_text() == "mine"


def test_a_name_that_is_no_module_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "domain", "Light-Board"]) == 2
    assert "'Light-Board' is no module name" in capsys.readouterr().err
