"""The programs of docs/migrating.md run, with small models and little data."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.files import read_json
from paths import ROOT

SMALL_RUN = """model_name_or_path="tabular", model_dtype="float32", max_new_tokens=1,
    temperature=1.0, num_steps_per_task=2, learning_rate=0.1,
    task_order=("toy_left", "toy_right")"""


def program(word: str, **replaced: str) -> str:
    """The program of the page that has ``word`` in it, with some of its text replaced."""
    text = (ROOT / "docs" / "migrating.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (found,) = (one for one in programs if word in one)
    for before, after in replaced.items():
        assert before in found
        found = found.replace(before, after)
    return found


def run(source: str, **names: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "migrating", **names}
    exec(source, scope)
    return scope


def test_program_with_an_own_algorithm_and_tracker_trains_and_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = 'model_name_or_path="tiny", task_order=("airline", "retail")'
    scope = run(program("class HarderFirst", **{settings: SMALL_RUN}))
    assert type(scope["trainer"].cl_algorithm).__name__ == "HarderFirst"
    assert len(read_json(RunDir(tmp_path / "runs" / "own").metrics)["losses"]) == 4
    exported = json.loads((tmp_path / "good.json").read_text())
    assert {record["reward"] for record in exported} == {1.0}


def conversation(index: int) -> dict[str, Any]:
    """A row in the format of Mem-α's data."""
    question = {"question": "Where does Ava live?", "answer": "Ghent"}
    return {
        "instance_id": f"squad_{index}",
        "prompt": "",
        "chunks": json.dumps([f"Ava moved to Ghent in 201{index}."]),
        "questions_and_answers": json.dumps([question]),
        "data_source": "squad",
        "num_chunks": 1,
        "num_questions": 1,
    }


@pytest.mark.slow
def test_program_with_mem_alphas_trainer_trains_on_the_given_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = pyarrow.Table.from_pylist([conversation(index) for index in range(3)])
    parquet.write_table(table, "train.parquet")
    small = {
        "Qwen/Qwen3-4B": "tiny",
        "-50": "-1",
        '"grpo_rollout_n": 8': '"grpo_rollout_n": 2',
        "num_epochs=3": "num_epochs=1",
    }
    run(program("mem_alpha", **small), frozen_llm=lambda prompt: "Ghent")
    (journal,) = tmp_path.rglob("trajectories.jsonl")
    trained_on = {json.loads(line)["task_id"] for line in journal.read_text().splitlines()}
    assert len(trained_on) == 2
    assert all("squad" in task_id for task_id in trained_on)
    assert (tmp_path / "ckpt" / "step_5.pt").is_file()
