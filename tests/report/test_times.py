from pathlib import Path

import pytest

from grpo_cl.report.run import read_run
from grpo_cl.report.times import BEFORE, duration, spending, stage_totals, total
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import Journal
from toy_runs import toy_run


def test_seconds_and_tokens_per_second_come_from_the_journals_of_a_run(tmp_path: Path):
    toy_run(tmp_path, num_steps_per_task=2)
    run = read_run(tmp_path)
    rows = stage_totals(run)
    assert [(row.label, row.steps) for row in rows] == [
        (BEFORE, 0),
        ("toy_left", 2),
        ("toy_right", 2),
    ]
    whole = total(rows)
    assert whole and whole.training_s and whole.rollout_s and whole.update_s
    assert whole.training_s >= whole.rollout_s + whole.update_s
    # Two stages of two steps, 8 tasks of 8 episodes of one token.
    assert whole.generated_tokens == whole.episodes == 256
    assert whole.generated_per_s == pytest.approx(256 / whole.rollout_s)
    assert whole.evaluation_s == pytest.approx(
        sum(record["play_s"] for record in run.times if record["kind"] == "eval")
    )


def test_a_step_that_was_repeated_counts_once_per_token(tmp_path: Path):
    toy_run(tmp_path, num_steps_per_task=1)
    before = stage_totals(read_run(tmp_path))[1]
    with Journal(RunDir(tmp_path).times_journal) as times:
        times.append({"kind": "train", "stage": 0, "step": 0, "step_s": 9.0, "rollout_s": 4.0})
    after = stage_totals(read_run(tmp_path))[1]
    assert before.training_s and after.training_s == pytest.approx(before.training_s + 9.0)
    assert after.rollout_s == 4.0
    assert after.generated_per_s == 64 / 4.0


def test_the_spending_of_model_apis_is_summed(tmp_path: Path):
    toy_run(tmp_path, num_steps_per_task=1)
    assert spending(read_run(tmp_path)) is None
    with Journal(RunDir(tmp_path).spending) as journal:
        journal.append({"model": "m", "tokens": 100, "cost": 0.25})
        journal.append({"model": "m", "tokens": 50, "cost": 0.5})
    assert spending(read_run(tmp_path)) == (150, 0.75)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (61, "1 min 1 s"),
        (3599.6, "1 h 0 min"),
        (7260, "2 h 1 min"),
    ],
)
def test_durations_are_rounded_to_two_units(seconds: float, words: str):
    assert duration(seconds) == words
