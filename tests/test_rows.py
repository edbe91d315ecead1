import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from grpo_cl.cli import main
from grpo_cl.domains import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.rows import divide, read_table
from grpo_cl.types import Task


def read(folder: Path, split: str) -> list[dict[str, Any]]:
    table: Any = load_dataset(
        "parquet",
        data_files=str(folder / f"{split}.parquet"),
        split="train",
        cache_dir=str(folder / "cache"),
    )
    return list(table)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables")
    assert main(["prepare-data", "--domains", "retail", "mock", "--output_dir", str(out)]) == 0
    return out


def test_tables_are_read_by_datasets_and_hold_the_columns_of_both_engines(folder: Path) -> None:
    for split in ("train", "validation"):
        for found in read(folder, split):
            assert found["env_class"] == found["agent_name"] == "grpo_cl"
            assert found["reward_spec"]["ground_truth"] == found["extra_info"]["task_id"]
            assert found["reward_model"]["style"] == found["reward_spec"]["method"] == "rule"
            assert [message["role"] for message in found["prompt"]] == ["system", "user"]
            assert found["extra_info"]["split"] == split


def test_a_row_carries_its_whole_task_and_the_tools(folder: Path) -> None:
    for found in read(folder, "validation"):
        info = found["extra_info"]
        domain = load_domain(info["domain"])
        assert Task.model_validate_json(info["task"]) == domain.task(info["task_id"])
        assert json.loads(info["tools"]) == json.loads(json.dumps(domain.tools(solo=True)))


def test_no_test_task_is_in_a_table_and_no_task_is_in_both(folder: Path) -> None:
    ids: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        infos = [found["extra_info"] for found in read(folder, split)]
        ids[split] = {info["task_id"] for info in infos if info["domain"] == "retail"}
    retail = load_domain("retail")
    assert ids["train"] | ids["validation"] == {task.id for task in retail.tasks("train")}
    assert not ids["train"] & ids["validation"]
    assert not (ids["train"] | ids["validation"]) & {task.id for task in retail.tasks("test")}


def test_more_tasks_move_none_across() -> None:
    tasks = list(load_domain("retail").tasks("train"))
    few, many = divide(tasks[:30], 0.8), divide(tasks, 0.8)
    assert {task.id for task in few.train} <= {task.id for task in many.train}
    assert len(many.train) == pytest.approx(0.8 * len(tasks), abs=12)


def test_generated_tasks_become_rows_too(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.json"
    main(["tasks", "generate", "--domain", "telecom", "--count", "20", "--out", str(tasks)])
    out = ["--output_dir", str(tmp_path), "--train_ratio", "0.5", "--max_tasks_per_domain", "12"]
    assert main(["prepare-data", "--input_path", str(tasks), *out]) == 0
    assert sum(len(read(tmp_path, split)) for split in ("train", "validation")) == 12


@pytest.mark.parametrize("ratio", [0.0, 1.0, 2.0])
def test_a_ratio_that_leaves_a_part_empty_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        divide([], ratio)


def test_a_file_without_domains_asks_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.json"
    tasks.write_text('[{"id": "0", "user_scenario": {"instructions": "x"}}]')
    status = main(["prepare-data", "--input_path", str(tasks), "--output_dir", str(tmp_path)])
    assert status == 2
    assert "--domains" in capsys.readouterr().err


def test_the_tasks_of_a_table_are_read_back_as_they_were(folder: Path) -> None:
    table = read_table(folder / "train.parquet")
    assert table.user == "solo"
    assert [task.id for task in table.tasks] == [
        row["extra_info"]["task_id"] for row in read(folder, "train")
    ]
    for task in table.tasks:
        assert task == load_domain(task.domain, None).task(task.id)


def test_a_file_that_is_no_table_of_tasks_is_refused_by_name(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    other.write_text("not a table")
    with pytest.raises(ConfigError, match=r"other\.parquet.* is no table"):
        read_table(other)
    with pytest.raises(ConfigError, match="is no table"):
        read_table(tmp_path / "absent.parquet")
