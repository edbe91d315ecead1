"""Builds the wheel, installs it outside the checkout without extras, and runs every command there.

A command works or names the extra that it needs in one sentence; a traceback fails. The size of the
installation is printed and limited: ``make test-wheel``.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_MB = 60
"""Of the packages that the wheel and its dependencies add to an empty environment."""
WORK = (
    "--version",
    "--help",
    "power --tasks 20 20",
    "tasks list --domain doordash",
    "tasks check --domain doordash",
    "play --scripted --domain doordash --count 2",
    "play --scripted --domain memory --count 1",
    "tasks list --domain toy_left",
)
NEED_TRAIN = (
    "demo",
    "train --model_name_or_path tiny",
    "train --model_name_or_path tabular --task_order toy_left",
    "evaluate tiny",
    "sft --out model",
    "serve tiny",
    "fetch-model smollm2-135m",
    "estimate-memory --model_name_or_path tiny --prompt_tokens 100",
)
NEED_TAU2 = (
    "tasks list --domain airline",
    "tasks list --domain banking_knowledge",
    "tasks check --domain mock",
    "tasks generate --domain retail",
    "play --scripted --domain telecom --count 1",
    "plan --out plan",
    "prepare-data --domains doordash --output_dir tables",
)


def main() -> int:
    """Install and try; prints a line per command."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environment = home / "environment"
        _run([sys.executable, "-m", "venv", str(environment)])
        before = _size(environment)
        pip = [str(environment / "bin" / "pip"), "--quiet", "--disable-pip-version-check"]
        _run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, str(ROOT)])
        wheel = next(home.glob("grpo_cl-*.whl"))
        lock = ROOT / "requirements" / "core.lock"
        _run([*pip, "install", "--no-deps", "--require-hashes", "--requirement", str(lock)])
        _run([*pip, "install", str(wheel)])  # anything the lock lacks would be installed here
        size = (_size(environment) - before) / 1e6
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed {size:.0f} MB")
        problems = [f"the base install takes {size:.0f} MB, above {MAX_MB}"] * (size > MAX_MB)
        for words, extra in _cases():
            problems += _try(environment / "bin" / "grpo-cl", words, extra, home)
    print(*problems, sep="\n")
    return 1 if problems else 0


def _cases() -> list[tuple[str, str | None]]:
    return [
        *((words, None) for words in WORK),
        *((words, "train") for words in NEED_TRAIN),
        *((words, "tau2") for words in NEED_TAU2),
    ]


def _try(program: Path, words: str, extra: str | None, folder: Path) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(program), *words.split()],
        cwd=folder,
        env=clean,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    sentences = done.stderr.strip().splitlines()
    if extra is None:
        is_right = done.returncode == 0 and "Traceback" not in done.stderr
    else:
        is_right = (
            done.returncode == 2 and len(sentences) == 1 and f"grpo-cl[{extra}]" in sentences[0]
        )
    print("ok " if is_right else "BAD", f"grpo-cl {words}")
    return [] if is_right else [f"grpo-cl {words}: {done.returncode}, {' '.join(sentences[-1:])}"]


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def _size(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


if __name__ == "__main__":
    sys.exit(main())
