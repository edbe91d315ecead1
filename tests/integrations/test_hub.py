"""Models of runs elsewhere: transformers, peft, vLLM's file layout, the Hugging Face hub."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_cl.cli import main
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.integrations.hub import prepare_upload, push
from grpo_cl.policy.model.tiny_model import Size
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.runs.layout import RunDir
from hub_server import TOKEN, Hub, running_hub
from small_runs import make_policy, small_config, small_trainer

IDS = [5, 17, 3, 99, 42, 8, 8, 1]
ONE_STAGE = {"task_order": ("mock",), "num_steps_per_task": 1, "evaluation": {"max_tasks": 1}}


class FinishedRun:
    """A run directory and the log-probs of its final policy."""

    def __init__(self, policy: Path, log_dir: Path, **changes: Any) -> None:
        trainer = small_trainer(small_config(policy, log_dir, **ONE_STAGE, **changes))
        trainer.train()
        assert isinstance(trainer.policy, PolicyRuntime)
        self.root = log_dir
        self.model_dir = RunDir(log_dir).stage_checkpoint(0).model_dir
        self.logprobs = torch.tensor(trainer.policy.model.token_logprobs(IDS))


def logprobs(module: Any) -> torch.Tensor:
    """The log-probs of all tokens but the first."""
    ids = torch.tensor([IDS])
    with torch.no_grad():
        scores = module.eval()(input_ids=ids).logits.float().log_softmax(-1)
    return scores[0, :-1].gather(1, ids[0, 1:, None])[:, 0]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_policy(tmp_path_factory.mktemp("base") / "base-policy", Size(width=64, layers=1))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# Base\n")
    return folder


@pytest.fixture(scope="module")
def run(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return FinishedRun(policy, tmp_path_factory.mktemp("run") / "all-weights")


@pytest.fixture(scope="module")
def adapter_run(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return FinishedRun(policy, tmp_path_factory.mktemp("run") / "adapter", lora={"r": 4})


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


def run_python(hub: Hub, *words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """A process that takes the loopback server for the hub."""
    variables = {"HF_ENDPOINT": hub.address, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def push_command(hub: Hub, *words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    program = "import sys; from grpo_cl.cli import main; sys.exit(main())"
    return run_python(hub, "-c", program, "push", *words, token=token)


@pytest.mark.slow
def test_the_model_of_a_run_loads_in_transformers_with_the_same_logprobs(
    run: FinishedRun, policy: Path
):
    model = AutoModelForCausalLM.from_pretrained(run.model_dir)
    assert torch.allclose(logprobs(model), run.logprobs, atol=1e-5)
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (policy, run.model_dir))
    assert theirs("the line is slow").input_ids == ours("the line is slow").input_ids


def test_the_adapter_of_a_run_loads_in_peft_with_the_same_logprobs(
    adapter_run: FinishedRun, policy: Path
):
    base = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    assert not torch.allclose(logprobs(base), adapter_run.logprobs, atol=1e-5)
    model = PeftModel.from_pretrained(base, adapter_run.model_dir)
    assert torch.allclose(logprobs(model), adapter_run.logprobs, atol=1e-5)


def test_a_model_has_the_files_that_vllm_reads(run: FinishedRun, adapter_run: FinishedRun):
    settings = json.loads((run.model_dir / "config.json").read_text())
    assert settings["architectures"] == ["LlamaForCausalLM"]
    with safe_open(run.model_dir / "model.safetensors", "pt") as weights:
        assert "model.layers.0.self_attn.q_proj.weight" in weights.keys()  # noqa: SIM118
    assert (run.model_dir / "tokenizer.json").is_file()
    adapter = json.loads((adapter_run.model_dir / "adapter_config.json").read_text())
    assert (adapter["peft_type"], adapter["r"], adapter["bias"]) == ("LORA", 4, "none")
    with safe_open(adapter_run.model_dir / "adapter_model.safetensors", "pt") as weights:
        names = list(weights.keys())
    assert all(name.startswith("base_model.model.model.layers.") for name in names)


def test_the_card_has_licence_matrix_settings_and_commit_and_no_path(
    run: FinishedRun, policy: Path, hub: Hub
):
    path = run.model_dir / "README.md"
    program = (
        "import sys; from huggingface_hub import ModelCard; ModelCard.load(sys.argv[1]).validate()"
    )
    done = run_python(hub, "-c", program, str(path))
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    card = ModelCard(text)
    assert card.data["license"] == "apache-2.0"
    assert card.data["library_name"] == "transformers"
    matrix = json.loads(RunDir(run.root).r_matrix.read_text())
    for row, name in zip(matrix["rows"], ("before training", "mock"), strict=True):
        assert f"| {name} | {row['cells']['mock']['mean']:.3f} |" in text
    assert "started from `base-policy`" in text
    assert "learning_rate: 0.001" in text
    commit = json.loads(RunDir(run.root).environment.read_text())["commit"]
    assert f"commit `{commit}`" in text
    for file in run.model_dir.iterdir():
        for path in (run.root, policy.parent):
            assert str(path).encode() not in file.read_bytes(), file.name


def test_a_pushed_model_has_the_files_of_the_run(run: FinishedRun, hub: Hub, tmp_path: Path):
    done = push_command(hub, str(run.root), "owner/policy", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.address}/owner/policy"
    assert TOKEN not in done.stdout + done.stderr
    assert hub.repositories["owner/policy"]["visibility"] == "private"
    for name, content in hub.files["owner/policy"].items():
        assert content == (run.model_dir / name).read_bytes()
        (tmp_path / name).write_bytes(content)
    assert hub.objects, "weights go to LFS"
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.allclose(logprobs(model), run.logprobs, atol=1e-5)


def test_a_refused_token_is_one_sentence_without_the_token(run: FinishedRun, hub: Hub):
    done = push_command(hub, str(run.root), "owner/policy", token="hf_wrongToken")
    assert done.returncode == 2
    assert "did not accept 'owner/policy' (status 401); log in with `hf auth login`" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "hf_wrongToken" not in done.stdout + done.stderr
    assert not hub.files


def test_a_hub_that_cannot_be_reached_is_one_sentence(
    run: FinishedRun, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ConfigError, match=r"127\.0\.0\.1:9 cannot be reached .*; check the network"
    ):
        push(prepare_upload(run.root), "owner/policy", is_private=False)


def test_an_adapter_of_a_local_base_model_needs_the_repository_of_its_base(
    adapter_run: FinishedRun, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(
        ConfigError, match=r"is 'base-policy' on this machine, .* --base_model OWNER"
    ):
        prepare_upload(adapter_run.root)
    upload = prepare_upload(adapter_run.root, base_model="owner/base")
    settings, card = upload.contents["adapter_config.json"], upload.contents["README.md"]
    assert isinstance(settings, bytes) and isinstance(card, bytes)
    assert json.loads(settings)["base_model_name_or_path"] == "owner/base"
    assert ModelCard(card.decode()).data["base_model"] == "owner/base"
    given = [str(adapter_run.root), "owner/policy", "--base_model", "owner/base", "--dry_run"]
    assert main(["push", *given]) == 0
    assert "adapter_model.safetensors" in capsys.readouterr().out


def test_a_damaged_or_unverified_model_is_not_pushed(run: FinishedRun, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(run.root, copy)
    weights = RunDir(copy).stage_checkpoint(0).model_dir / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(CheckpointError, match=r"model.safetensors fails its checksum; restore it"):
        prepare_upload(copy)
    (RunDir(copy).stage_checkpoint(0).root / "MANIFEST.json").unlink()
    with pytest.raises(CheckpointError, match=r"MANIFEST.json cannot be read"):
        prepare_upload(copy)
    with pytest.raises(ConfigError, match="only models of runs are pushed"):
        prepare_upload(tmp_path)


@pytest.mark.parametrize("name", ["policy", "owner/a/b", "owner/--"])
def test_a_repository_name_is_checked_before_the_model(name: str, tmp_path: Path):
    assert main(["push", str(tmp_path), name]) == 2
