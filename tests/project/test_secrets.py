"""A canary for every secret that a user can give: none is in a file, on stdout or on stderr."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chat_server import ChatServer, Fault

CANARY = "canary-5b1f"
VARIABLES = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "LOOPBACK_API_KEY",
    "GRPO_CL_SERVER_KEY",
    "WANDB_API_KEY",
    "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "HTTP_PROXY_PASSWORD",
)
SECRETS = {name: f"{CANARY}-{number}-0123456789" for number, name in enumerate(VARIABLES)}
MODEL = "openai-api/loopback/small"
HOSTED = ["evaluate", "--model", MODEL, "--domain", "toy_left", "--evaluation.trials", "1"]
TRAIN = ["train", "--model_name_or_path", "tabular", "--num_steps_per_task", "1"]
TOY = ["--task_order", "toy_left", "--evaluation.trials", "1"]


def run(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grpo_cl", *words],
        cwd=folder,
        env={**os.environ, **SECRETS, "WANDB_MODE": "offline"},
        capture_output=True,
        text=True,
        check=False,
    )


def leaks(folder: Path, done: subprocess.CompletedProcess[str]) -> Iterator[str]:
    """Where the canary is found."""
    for stream, text in (("stdout", done.stdout), ("stderr", done.stderr)):
        if CANARY in text:
            yield f"{stream}: {text[max(0, text.index(CANARY) - 200) :][:400]}"
    for path in folder.rglob("*"):
        if path.is_file() and CANARY.encode() in path.read_bytes():
            yield str(path.relative_to(folder))


def with_credentials(server: ChatServer) -> str:
    address = server.url.replace("http://", f"http://me:{CANARY}-password@")
    return f"{address}?api_key={CANARY}-query"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, "401"])
def test_hosted_model_is_evaluated_without_a_trace_of_its_secrets(
    fault: Fault | None, tmp_path: Path
):
    faults: list[Fault | None] = [fault] * 1000
    with ChatServer(lambda _: "Sorry.", faults) as server:
        words = [*HOSTED, "--base_url", with_credentials(server), "--out", "scores.json"]
        done = run([*words, "--models.retries", "0", "--models.cache_dir", "cache"], tmp_path)
        assert server.requests, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(leaks(tmp_path, done))


@pytest.mark.slow
def test_training_run_has_no_trace_of_secrets(tmp_path: Path):
    address = f"http://me:{CANARY}-password@127.0.0.1:9/v1?api_key={CANARY}-query"
    words = [*TRAIN, *TOY, "--log_dir", "run", "--judge.base_url", address, "--judge.model", MODEL]
    done = run(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "environment.json").is_file()
    assert not list(leaks(tmp_path, done))


@pytest.mark.slow
def test_secret_options_of_commands_are_not_in_their_refusals(tmp_path: Path):
    done = run(["serve", "nowhere/model", "--api_key", f"{CANARY}-option"], tmp_path)
    assert done.returncode == 2
    assert not list(leaks(tmp_path, done))
