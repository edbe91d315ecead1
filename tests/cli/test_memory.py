import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from grpo_cl.cli import main
from grpo_cl.cli.options import read_config
from grpo_cl.config import GRPOConfig, MemoryConfig
from grpo_cl.envs.memory import MemorySystem
from grpo_cl.envs.memory.domain import MemoryDomain
from grpo_cl.envs.memory.generator import generate_instances
from grpo_cl.envs.memory.instances import instance_of
from grpo_cl.envs.memory.loaders import save_jsonl
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.policy.learner.sft_data import DemonstrationSpec, generate_examples
from grpo_cl.policy.model.tiny_model import Size, create_tiny_model

COMPACT = [
    *("--model_dtype", "float32", "--rollout.prompt", "compact", "--max_new_tokens", "8"),
    *("--sampling.dialect", "compact", "--sampling.max_context", "2048"),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    lesson = generate_examples(DemonstrationSpec("memory", 0, 10, 0.0, is_compact=True))
    create_tiny_model(lesson, folder, seed=0, size=Size(width=64, layers=1))
    return str(folder)


@pytest.fixture
def memory(tmp_path: Path) -> str:
    memory = MemorySystem()
    memory.update_core("Ava is the user.")
    memory.insert("Ava lives in Oslo.", category="spatiotemporal_context")
    memory.insert("Mia drives a Volvo.")
    memory.save(tmp_path / "memory.json")
    return str(tmp_path / "memory.json")


def test_demo_ranks_baselines_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "demo", "--count", "4"]) == 0
    printed = capsys.readouterr().out
    assert "The gold memory:" in printed
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines()[-4:]}
    assert list(rows) == ["oracle", "append", "copy_chunk", "idle"]
    assert rows["oracle"][0] == "1.000"
    assert float(rows["oracle"][0]) > float(rows["append"][0]) > float(rows["idle"][0])
    assert float(rows["copy_chunk"][1]) < float(rows["append"][1])  # under the tight budget


def test_demo_shows_other_instances_for_another_seed(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []
    for seed in ("0", "0", "1"):
        assert main(["memory", "demo", "--count", "1", "--seed", seed]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert printed[0].splitlines()[:4] != printed[2].splitlines()[:4]
    assert main(["memory", "demo", "--count", "1"]) == 0
    assert capsys.readouterr().out == printed[0]


def test_retrieve_searches_a_saved_memory(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "retrieve", memory, "Where does Ava live?"]) == 0
    core, first = capsys.readouterr().out.splitlines()
    assert core == "Core: Ava is the user."
    assert first.endswith("[1] (spatiotemporal_context) Ava lives in Oslo.")
    assert main(["memory", "retrieve", memory, "Volvo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == 2
    assert main(["memory", "retrieve", memory, "quantum"]) == 0
    assert "none of 2 entries" in capsys.readouterr().out


def test_construct_with_a_policy_writes_the_memory_of_a_text(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "talk.txt"
    text.write_text("Ava lives in Oslo. " * 6)
    out = tmp_path / "out"
    arguments = ["memory", "construct", str(text), "--chunk_tokens", "20", "--out", str(out)]
    assert main([*arguments, "--model_name_or_path", policy, *COMPACT]) == 0
    assert "2 of 2 chunks read" in capsys.readouterr().out
    assert MemorySystem.load(out / "memory.json").entries == {}
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    assert [line["chunk_id"] for line in lines] == [0, 1]


def test_construct_with_a_hosted_model_writes_the_memory_of_a_loaded_conversation(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.jsonl"
    save_jsonl(path, generate_instances(0, 2, difficulty=0.0))
    arguments = ["memory", "construct", str(path), "--format", "jsonl", "--model", "mockllm/model"]
    assert main([*arguments, "--number", "1", "--out", str(tmp_path)]) == 0
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 3


def test_construct_reports_a_missing_conversation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    save_jsonl(path, generate_instances(0, 2, difficulty=0.0))
    arguments = ["memory", "construct", str(path), "--out", str(tmp_path), "--format", "jsonl"]
    assert main([*arguments, "--number", "2"]) == 2
    assert "give one from 0 to 1" in capsys.readouterr().err
    assert main(["memory", "construct", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "none' does not exist" in capsys.readouterr().err


def test_eval_of_a_baseline_prints_confidence_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["memory", "eval", "--count", "6", "--json", "--tasks.difficulty", "0.5"]
    assert main([*arguments, "--writer", "append"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["writer"], output["instances"]) == ("append", 6)
    assert output["r1"]["low"] < output["r1"]["estimate"] < output["r1"]["high"] < 1
    assert main([*arguments, "--writer", "apend"]) == 2
    assert "unknown writer 'apend'" in capsys.readouterr().err
    path = tmp_path / "mine.jsonl"
    save_jsonl(path, generate_instances(0, 3, difficulty=0.0))
    assert main(["memory", "eval", "--writer", "oracle", "--memory.path", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("oracle on 3 instances")
    assert printed.splitlines()[2].split() == ["r1", "1.000", "1.000", "1.000"]


def test_generated_files_serve_as_training_and_test_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "held_out")}
    for seed, path in enumerate(files.values()):
        arguments = ["memory", "generate", "--count", "3", "--seed", str(seed), "--difficulty", "0"]
        assert main([*arguments, "--out", str(path), "--memory.knobs.chunks", "2"]) == 0
    assert capsys.readouterr().out.startswith("3 instances: ")
    memory = MemoryConfig(path=files["train"], test_path=files["held_out"])
    loader = TaskDataLoader(GRPOConfig(task_order=("memory",), memory=memory))
    train, test = loader.train_tasks("memory"), loader.evaluation_tasks("memory")
    assert (len(train), len(test)) == (3, 3)
    assert {len(instance_of(task).chunks) for task in (*train, *test)} == {2}
    twice = MemoryConfig(path=files["train"], test_path=files["train"])
    with pytest.raises(ConfigError, match="occurs twice"):
        MemoryDomain(settings=twice).tasks("test")
    with pytest.raises(ValidationError, match=r"requires memory\.path"):
        MemoryConfig(test_path=files["train"])


def test_eval_of_a_policy(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["memory", "eval", "--count", "2", "--model_name_or_path", policy, *COMPACT]
    assert main([*arguments, "--tasks.difficulty", "0", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert set(output) == {"writer", "instances", "r1", "r2", "r3", "r4", "r_t"}
    assert output["r2"]["estimate"] < 0.5


def test_published_memory_config_is_valid() -> None:
    config = read_config(["--config", "configs/memory.yaml"])
    assert config.task_order == ("memory",)
    assert config.memory.answerer.context_tokens < 32
