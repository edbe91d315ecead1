"""benchmarks/overlap.py on the tabular policy, which trains a step in milliseconds."""

import re

import pytest

from overlap import Reading, idle_share, main

TOY = (
    *("--model", "tabular", "--domain", "toy_left", "--model_dtype", "float32"),
    *("--max_new_tokens", "1", "--num_samples_per_prompt", "2", "--batch_size_per_gpu", "1"),
)


def test_idle_share_counts_from_the_second_to_the_last_start_of_each_run() -> None:
    readings = [Reading(*pair) for pair in ((0, 1.0), (1, 0.5), (2, 0.9), (3, 1.0), (5, 0.0))]
    # Of the first run the readings at 1 and 2 count, of the second the one at 5: 1 - 1.4 / 3.
    assert idle_share(readings, [[0.0, 1.0, 3.0], [4.0, 4.5, 6.0]]) == "53%"
    assert idle_share(readings, [[0.0, 1.0, 3.0]]) == "30%"
    assert idle_share([], [[0.0, 1.0, 3.0]]) == "–"


def test_each_way_to_save_has_a_row_whose_time_includes_the_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["saves", "--steps", "4", *TOY])
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header == "| checkpoint | s from step to step | of which the step | GPU idle |"
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [row[0] for row in cells] == ["none", "before the next step", "in a thread"]
    for row in cells:
        whole, step = (float(re.findall(r"[\d.]+", cell)[1]) for cell in row[1:3])
        assert whole >= step


def test_a_run_with_too_few_steps_to_measure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["saves", "--steps", "2", *TOY])
    assert "--steps 2: at least 3" in capsys.readouterr().err
