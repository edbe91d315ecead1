"""Configuration files and settings that no user should write: refused in a sentence."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grpo_cl.cli.options import read_config
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from torture.cases import Bench, Case, Verdict, crash, lost, survived, wrong
from torture.hostile_models import CANARY, within_limits
from torture.processes import run_command
from torture.toy import RUN

LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
)
FILES: dict[str, bytes] = {
    "aliases": LAUGHS.encode(),
    "aliases in a setting": (LAUGHS + "\ntask_order: *a29").encode(),
    "self reference": b"a: &a [*a]",
    "self reference in a setting": b"task_order: &a [*a]",
    "deep list": b"a: " + b"[" * 100_000,
    "deep closed list": b"a: " + b"[" * 5_000 + b"]" * 5_000,
    "deep mapping": b"".join(b" " * n + b"a:\n" for n in range(3_000)),
    "python object": f'a: !!python/object/apply:os.system ["touch {CANARY}"]'.encode(),
    "python name": b"seed: !!python/name:os.system",
    "empty": b"",
    "list": b"- 1\n- 2",
    "number": b"5",
    "null bytes": b"\0" * 100,
    "latin-1": b"log_dir: \xe9\xff",
    "utf-16": "seed: 1".encode("utf-16"),
    "unknown setting": b"sede: 1",
    "number as a key": b"5: 1",
    "list as a key": b"[1, 2]: 3",
    "same key again": b"seed: 1\nseed: 2",
    "huge integer": b"seed: " + b"9" * 100_000,
    "huge exponent": b"learning_rate: 1e999999",
    "infinity": b"learning_rate: .inf",
    "not a number": b"kl_coef: .nan",
    "date": b"seed: 2024-01-01",
    "long name": b"a" * 1_000_000 + b": 1",
    "long text": b"model_name_or_path: " + b"x" * 1_000_000,
    "tab": b"a:\n\t- b",
    "two documents": b"seed: 1\n---\nseed: 2",
    "merge": b"<<: *missing",
    "parent folder": b"model_name_or_path: ../../../../../../etc",
    "terminal codes": b'cl_algorithm: "\\e[2J\\a"',
}
VALUES: tuple[str, ...] = (
    *("nan", ".nan", "inf", "-.inf", ".inf", "1e999", "-1", "-1e30", "9" * 5_000, "1e308"),
    *("[]", "{}", "null", "true", "''", "'x'", "[[[]]]", "{a: {b: c}}", "2024-01-01", "0x10"),
)


def hostile_files(bench: Bench) -> Iterator[Case]:
    """Start a run with a hostile configuration file."""
    for name in bench.rng("files").sample(sorted(FILES), bench.amount(len(FILES))):
        yield Case(name, _read(FILES[name]))


def hostile_settings(bench: Bench) -> Iterator[Case]:
    """Give every setting values of other types and sizes."""
    names = [name for name, _ in _leaves(GRPOConfig().model_dump(mode="json"))]
    for name in bench.rng("settings values").sample(names, bench.amount(len(names))):
        yield Case(name, _validated(name), tried=len(VALUES))


def _read(content: bytes) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        (folder / "config.yaml").write_bytes(content)
        words = ("train", "--config", "config.yaml", "--model_name_or_path", "no/such/model")
        words = (*words, "--log_dir", RUN)
        ended = run_command(words, folder, prepare=within_limits, limit_s=60)
        if (folder / CANARY).exists():
            return wrong("it ran code of the file")
        return survived() if ended.is_refusal else lost(crash(ended))

    return attempt


def _validated(name: str) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        del folder
        for value in VALUES:
            try:
                config = read_config([f"--{name}", value])
            except ConfigError:
                continue
            except Exception as error:  # noqa: BLE001, any exception is what is looked for
                return lost(f"{name}={value[:40]}: {type(error).__name__}: {str(error)[:200]}")
            numbers = [entry for _, entry in _leaves(config.model_dump())]
            if any(isinstance(entry, float) and not math.isfinite(entry) for entry in numbers):
                return wrong(f"{name}={value} is accepted")
        return survived()

    return attempt


def _leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield from _leaves(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry
