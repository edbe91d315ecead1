import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from grpo_cl.cli import main
from grpo_cl.cli.options import read_config
from grpo_cl.config import GRPOConfig
from grpo_cl.domains.memory.domain import MemoryDomain
from grpo_cl.errors import ConfigError
from grpo_cl.memory import MemorySystem
from grpo_cl.memory.generator import generate_instances
from grpo_cl.memory.loaders import save_jsonl
from grpo_cl.memory.tasks import instance_of
from grpo_cl.policy.sft import Lesson, examples
from grpo_cl.policy.tiny_model import Size, new_tiny
from grpo_cl.roles import MemoryConfig
from grpo_cl.tasks import TaskDataLoader

COMPACT = [
    *("--model_dtype", "float32", "--rollout.prompt", "compact", "--max_new_tokens", "8"),
    *("--sampling.dialect", "compact", "--sampling.max_context", "2048"),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    lesson = examples(Lesson("memory", 0, 10, 0.0, is_compact=True))
    new_tiny(lesson, folder, seed=0, size=Size(width=64, layers=1))
    return str(folder)


@pytest.fixture
def memory(tmp_path: Path) -> str:
    made = MemorySystem()
    made.update_core("Ava is the user.")
    made.insert("Ava lives in Oslo.", category="spatiotemporal_context")
    made.insert("Mia drives a Volvo.")
    made.save(tmp_path / "memory.json")
    return str(tmp_path / "memory.json")


def test_the_demo_ranks_writers_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "demo", "--count", "4"]) == 0
    printed = capsys.readouterr().out
    assert "A careful writer remembers:" in printed
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines()[-4:]}
    assert list(rows) == ["oracle", "append", "copy_chunk", "idle"]
    assert rows["oracle"][0] == "1.000"
    assert float(rows["oracle"][0]) > float(rows["append"][0]) > float(rows["idle"][0])
    assert float(rows["copy_chunk"][1]) < float(rows["append"][1])  # under the tight budget


def test_a_memory_is_searched(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "retrieve", memory, "Where does Ava live?"]) == 0
    core, first = capsys.readouterr().out.splitlines()
    assert core == "Core: Ava is the user."
    assert first.endswith("[1] (spatiotemporal_context) Ava lives in Oslo.")
    assert main(["memory", "retrieve", memory, "Volvo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == 2
    assert main(["memory", "retrieve", memory, "quantum"]) == 0
    assert "nothing of 2 entries" in capsys.readouterr().out


def test_a_policy_writes_a_memory_of_a_text(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "talk.txt"
    text.write_text("Ava lives in Oslo. " * 6)
    out = tmp_path / "out"
    words = ["memory", "construct", str(text), "--chunk_tokens", "20", "--out", str(out)]
    assert main([*words, "--model_name_or_path", policy, *COMPACT]) == 0
    assert "2 of 2 chunks read" in capsys.readouterr().out
    assert MemorySystem.load(out / "memory.json").entries == {}
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    assert [line["chunk_id"] for line in lines] == [0, 1]


def test_a_hosted_model_writes_a_memory_of_a_loaded_conversation(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    save_jsonl(path, generate_instances(0, 2, difficulty=0.0))
    words = ["memory", "construct", str(path), "--format", "jsonl", "--model", "mockllm/model"]
    assert main([*words, "--number", "1", "--out", str(tmp_path)]) == 0
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 3


def test_a_conversation_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    save_jsonl(path, generate_instances(0, 2, difficulty=0.0))
    words = ["memory", "construct", str(path), "--out", str(tmp_path), "--format", "jsonl"]
    assert main([*words, "--number", "2"]) == 2
    assert "give one from 0 to 1" in capsys.readouterr().err
    assert main(["memory", "construct", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_rule_is_measured_with_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["memory", "eval", "--count", "6", "--json", "--tasks.difficulty", "0.5"]
    assert main([*words, "--writer", "append"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["writer"], found["instances"]) == ("append", 6)
    assert found["r1"]["low"] < found["r1"]["estimate"] < found["r1"]["high"] < 1
    assert main([*words, "--writer", "apend"]) == 2
    assert "unknown writer 'apend'" in capsys.readouterr().err
    path = tmp_path / "mine.jsonl"
    save_jsonl(path, generate_instances(0, 3, difficulty=0.0))
    assert main(["memory", "eval", "--writer", "oracle", "--memory.path", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("oracle on 3 instances")
    assert printed.splitlines()[2].split() == ["r1", "1.000", "1.000", "1.000"]


def test_instances_are_written_to_learn_from_and_to_be_measured_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "held_out")}
    for seed, path in enumerate(files.values()):
        words = ["memory", "generate", "--count", "3", "--seed", str(seed), "--difficulty", "0"]
        assert main([*words, "--out", str(path), "--memory.knobs.chunks", "2"]) == 0
    assert capsys.readouterr().out.startswith("3 instances: ")
    given = MemoryConfig(path=files["train"], test_path=files["held_out"])
    loader = TaskDataLoader(GRPOConfig(task_order=("memory",), memory=given))
    train, test = loader.train_tasks("memory"), loader.evaluation_tasks("memory")
    assert (len(train), len(test)) == (3, 3)
    assert {len(instance_of(task).chunks) for task in (*train, *test)} == {2}
    twice = MemoryConfig(path=files["train"], test_path=files["train"])
    with pytest.raises(ConfigError, match="stands twice"):
        MemoryDomain(settings=twice).tasks("test")
    with pytest.raises(ValidationError, match=r"goes with memory\.path"):
        MemoryConfig(test_path=files["train"])


def test_a_policy_is_measured(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["memory", "eval", "--count", "2", "--model_name_or_path", policy, *COMPACT]
    assert main([*words, "--tasks.difficulty", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"writer", "instances", "r1", "r2", "r3", "r4", "r_t"}
    assert found["r2"]["estimate"] < 0.5


def test_the_published_memory_config_is_read() -> None:
    config = read_config(["--config", "configs/memory.yaml"])
    assert config.task_order == ("memory",)
    assert config.memory.answerer.context_tokens < 32
