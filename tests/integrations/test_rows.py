import json
import re
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from grpo_cl.cli import main
from grpo_cl.envs import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.rows import read_table, split_tasks
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


def test_parquet_files_load_with_datasets_and_have_the_columns_of_both_engines(
    folder: Path,
) -> None:
    for split in ("train", "validation"):
        for row in read(folder, split):
            assert row["env_class"] == row["agent_name"] == "grpo_cl"
            assert row["reward_spec"]["ground_truth"] == row["extra_info"]["task_id"]
            assert row["reward_model"]["style"] == row["reward_spec"]["method"] == "rule"
            assert [message["role"] for message in row["prompt"]] == ["system", "user"]
            assert row["extra_info"]["split"] == split


def test_row_has_the_whole_task_and_the_tool_schemas(folder: Path) -> None:
    for row in read(folder, "validation"):
        info = row["extra_info"]
        domain = load_domain(info["domain"])
        assert Task.model_validate_json(info["task"]) == domain.task(info["task_id"])
        assert json.loads(info["tools"]) == json.loads(json.dumps(domain.tools(solo=True)))


def test_train_and_validation_rows_are_disjoint_and_have_no_test_tasks(folder: Path) -> None:
    ids: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        infos = [row["extra_info"] for row in read(folder, split)]
        ids[split] = {info["task_id"] for info in infos if info["domain"] == "retail"}
    retail = load_domain("retail")
    assert ids["train"] | ids["validation"] == {task.id for task in retail.tasks("train")}
    assert not ids["train"] & ids["validation"]
    assert not (ids["train"] | ids["validation"]) & {task.id for task in retail.tasks("test")}


def test_adding_tasks_moves_none_between_train_and_validation() -> None:
    tasks = list(load_domain("retail").tasks("train"))
    few, many = split_tasks(tasks[:30], 0.8), split_tasks(tasks, 0.8)
    assert {task.id for task in few.train} <= {task.id for task in many.train}
    assert len(many.train) == pytest.approx(0.8 * len(tasks), abs=12)


def test_generated_tasks_are_converted_to_rows(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.json"
    main(["tasks", "generate", "--domain", "telecom", "--count", "20", "--out", str(tasks)])
    out = ["--output_dir", str(tmp_path), "--train_ratio", "0.5", "--max_tasks_per_domain", "12"]
    assert main(["prepare-data", "--input_path", str(tasks), *out]) == 0
    assert sum(len(read(tmp_path, split)) for split in ("train", "validation")) == 12


def prepare(tasks: list[dict[str, Any]], folder: Path, *options: str) -> dict[str, list[str]]:
    """Write a task file and its tables, and return the tasks of each table as DOMAIN/ID."""
    file = folder / "tasks.json"
    file.write_text(json.dumps(tasks))
    out = ["--input_path", str(file), "--output_dir", str(folder), "--train_ratio", "0.5"]
    assert main(["prepare-data", *out, *options]) == 0
    return {
        split: [
            f"{task.domain}/{task.id}" for task in read_table(folder / f"{split}.parquet").tasks
        ]
        for split in ("train", "validation")
    }


def dumped(name: str, split: str) -> list[dict[str, Any]]:
    tasks = load_domain(name).tasks(split)
    return [task.model_dump(mode="json", exclude={"domain"}) for task in tasks]


def own_mock_tasks(count: int, **fields: Any) -> list[dict[str, Any]]:
    scenario = {"instructions": "You want a task called Tea."}
    return [{"id": f"own_{n}", "user_scenario": scenario, **fields} for n in range(count)]


def test_test_tasks_of_the_domain_in_a_task_file_are_in_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = prepare(dumped("retail", "base"), tmp_path, "--domains", "retail")
    retail = load_domain("retail")
    written = {*tables["train"], *tables["validation"]}
    assert written == {f"retail/{task.id}" for task in retail.tasks("train")}
    assert f"{len(retail.splits['test'])} test tasks are left out" in capsys.readouterr().out


def test_a_renamed_test_task_is_in_no_table(tmp_path: Path) -> None:
    renamed = [{**task, "id": f"new_{task['id']}"} for task in dumped("retail", "test")[:3]]
    own = own_mock_tasks(8, domain="mock")
    tables = prepare(renamed + own, tmp_path, "--domains", "retail")
    assert len(tables["train"]) + len(tables["validation"]) == 8


def test_generated_test_tasks_are_in_no_table(tmp_path: Path) -> None:
    domain = load_domain("telecom")
    made = [
        task.model_dump(mode="json")
        for split in ("train", "test")
        for task in domain.generate(seed=3, count=8, split=split)
    ]
    tables = prepare(made, tmp_path)
    written = [*tables["train"], *tables["validation"]]
    assert len(written) == 8
    assert all(name.startswith("telecom/telecom-gen-train-") for name in written)


def test_the_split_of_a_task_in_the_file_is_kept(tmp_path: Path) -> None:
    tasks = own_mock_tasks(9, domain="mock")
    marks = ["train", "validation", "test", None] * 2 + ["train"]
    for task, mark in zip(tasks, marks, strict=True):
        task |= {} if mark is None else {"split": mark}
    tables = prepare(tasks, tmp_path)
    assert tables["validation"] == ["mock/own_1", "mock/own_5"]
    assert tables["train"] == [f"mock/own_{n}" for n in (0, 3, 4, 7, 8)]


def test_the_list_of_splits_beside_a_task_file_is_used(tmp_path: Path) -> None:
    splits = {"base": ["own_0", "own_1"], "test": ["own_0", "own_1"]}
    (tmp_path / "split_tasks.json").write_text(json.dumps(splits))
    tables = prepare(own_mock_tasks(9), tmp_path, "--domains", "mock")
    written = {*tables["train"], *tables["validation"]}
    assert written == {f"mock/own_{n}" for n in range(2, 9)}


def test_a_task_keeps_its_own_domain(tmp_path: Path) -> None:
    mixed = [*own_mock_tasks(4, domain="mock"), *dumped("retail", "train")[:6]]
    tables = prepare(mixed, tmp_path, "--domains", "retail")
    domains = [name.split("/")[0] for name in (*tables["train"], *tables["validation"])]
    assert (domains.count("mock"), domains.count("retail")) == (4, 6)


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        (own_mock_tasks(2, domain="mock", split="dev"), [], "task 0 of .*'dev' is none of train"),
        (own_mock_tasks(2, domain="mock", split="test"), [], "2 of them are test tasks"),
        (own_mock_tasks(2), ["--domains", "mock", "retail"], "the one domain of tasks that name"),
    ],
)
def test_a_task_file_that_gives_no_training_tasks_is_refused_and_nothing_is_written(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tasks: list[dict[str, Any]],
    options: list[str],
    message: str,
) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps(tasks))
    command = ["prepare-data", "--input_path", str(file), "--output_dir", str(tmp_path)]
    assert main([*command, *options]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.glob("*.parquet"))


@pytest.mark.parametrize("ratio", [0.0, 1.0, 2.0])
def test_ratio_that_leaves_a_part_empty_is_rejected(ratio: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        split_tasks([], ratio)


def test_task_file_without_domains_needs_the_domains_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.json"
    tasks.write_text('[{"id": "0", "user_scenario": {"instructions": "x"}}]')
    status = main(["prepare-data", "--input_path", str(tasks), "--output_dir", str(tmp_path)])
    assert status == 2
    assert "--domains" in capsys.readouterr().err


def test_tasks_round_trip_through_a_parquet_file(folder: Path) -> None:
    table = read_table(folder / "train.parquet")
    assert table.user == "solo"
    assert [task.id for task in table.tasks] == [
        row["extra_info"]["task_id"] for row in read(folder, "train")
    ]
    for task in table.tasks:
        assert task == load_domain(task.domain, None).task(task.id)


def test_file_without_task_rows_is_rejected_with_its_name(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    other.write_text("not a table")
    with pytest.raises(ConfigError, match=r"other\.parquet.* is not a table"):
        read_table(other)
    with pytest.raises(ConfigError, match="is not a table"):
        read_table(tmp_path / "absent.parquet")
