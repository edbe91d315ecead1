import io

import pytest

from grpo_cl.metrics.progress import (
    CLEAR_LINE,
    Progress,
    clock_time,
    evaluation_name,
    fit,
    printable,
)
from grpo_cl.metrics.time_left import Schedule

SCHEDULE = Schedule(("airline", "retail"), 20)
NUMBERS = {
    "reward_mean": 0.5,
    "pass_rate": 0.25,
    "loss": 0.12341,
    "kl": 3.0,
    "generated_tokens": 9000.0,
    "step_s": 4.5,
    "zero_variance_groups": 3.0,
    "groups": 8.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """The live lines, in the order in which they were drawn."""
        return [text.split("\n")[-1] for text in self.getvalue().split(CLEAR_LINE)[1:]]


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def progress_on(stream: io.StringIO, clock: Clock) -> Progress:
    return Progress(stream, SCHEDULE, clock=clock)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_without_a_terminal_each_step_and_evaluation_is_one_plain_line() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = progress_on(stream, clock)
    progress.begin("before training: evaluating airline")
    clock.now = 2.0
    progress.evaluation("airline", {"pass_rate": 0.35}, row=0, when="before training")
    clock.now = 12.0
    progress.step(0, 10, NUMBERS)
    progress.step(0, 11, {"loss": None, "reward_mean": 0.25})
    assert stream.getvalue() == (
        "before training: evaluating airline\n"
        "before training: airline passed 0.350\n"
        "airline 1/2, step 10/20: reward 0.500, 2,000 tokens/s, 3/8 groups equal, passed 0.250, "
        "loss 0.1234, 5:10 left\n"
        "airline 1/2, step 11/20: reward 0.250, 2:35 left\n"
    )


def test_a_terminal_has_a_line_before_anything_is_finished(wide: None) -> None:
    stream, clock = Terminal(), Clock()
    progress = progress_on(stream, clock)
    progress.begin("before training: evaluating airline")
    assert stream.lines() == ["0:00 so far  before training: evaluating airline  " + "─" * 20]
    progress.begin_episodes(8)
    clock.now = 3.0
    progress.episode_ended()
    assert "0:03 so far  before training: evaluating airline  1/8 episodes" in stream.lines()[-1]


def test_the_time_left_stands_first_and_runs_down_between_steps(wide: None) -> None:
    stream, clock = Terminal(), Clock()
    progress = progress_on(stream, clock)
    for domain in SCHEDULE.domains:
        progress.evaluation(domain, {}, row=0, when="before training")
    clock.now = 5.0
    progress.step(1, 10, NUMBERS)
    assert stream.lines()[-1].startswith("0:50 left  retail 2/2, step 10/20  reward 0.500  2,000")
    assert stream.lines()[-1].endswith("loss 0.1234  ━━━━━━━━━━━━━━━─────")
    progress.begin("retail 2/2, step 11/20")
    progress.begin_episodes(64)
    clock.now = 7.0
    progress.episode_ended()
    assert stream.lines()[-1].startswith("0:48 left  retail 2/2, step 11/20  1/64 episodes")


def test_the_reward_of_training_does_not_stand_beside_an_evaluation(wide: None) -> None:
    stream = Terminal()
    progress = progress_on(stream, Clock())
    progress.step(0, 20, NUMBERS)
    progress.begin("after airline: evaluating airline", is_step=False)
    progress.begin_episodes(8)
    assert "reward" not in stream.lines()[-1]
    progress.begin("retail 2/2, step 1/20")
    assert "reward 0.500" in stream.lines()[-1]


def test_a_permanent_line_stands_above_the_live_one(wide: None) -> None:
    stream = Terminal()
    progress = progress_on(stream, Clock())
    progress.begin("airline 1/2, step 1/20")
    progress.note("changed settings")
    text = stream.getvalue()
    assert f"{CLEAR_LINE}changed settings\n0:00 so far  airline 1/2, step 1/20" in text
    progress.erase()
    assert stream.getvalue().endswith(CLEAR_LINE)


@pytest.mark.parametrize("columns", [200, 100, 60, 40, 20, 8])
def test_a_live_line_has_whole_parts_and_never_wraps(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream, clock = Terminal(), Clock()
    progress = progress_on(stream, clock)
    clock.now = 5.0
    progress.step(0, 1, NUMBERS)
    line = stream.lines()[-1]
    assert len(line) < columns
    parts = ["0:05 so far", "airline 1/2, step 1/20", "reward 0.500", "2,000 tokens/s"]
    kept = [part for part in parts if part in line]
    assert kept == parts[: len(kept)]
    assert columns < 60 or "reward 0.500" in line


def test_parts_that_do_not_fit_are_left_out_whole() -> None:
    assert fit(["0:50 left", "retail", "reward 0.5"], 20) == "0:50 left  retail"
    assert fit(["0:50 left", "retail", "reward 0.5"], 5) == "0:50 "


def test_a_stall_is_reported_with_the_next_episode_after_thirty_seconds_of_silence() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = progress_on(stream, clock)
    progress.begin("airline 1/2, step 1/20")
    progress.begin_episodes(8)
    for second in (10, 29, 31, 40, 62):
        clock.now = second
        progress.episode_ended()
    assert stream.getvalue() == (
        "airline 1/2, step 1/20\n"
        "airline 1/2, step 1/20: 3/8 episodes, 2 s after the one before\n"
        "airline 1/2, step 1/20: 5/8 episodes, 22 s after the one before\n"
    )


def test_an_evaluation_is_named_by_its_place_in_the_run() -> None:
    names = [evaluation_name(SCHEDULE, 0, 5, row=row) for row in (0, 1, 2, None)]
    assert names == [
        *("before training", "after airline", "after retail"),
        "airline 1/2, step 5/20, evaluation",
    ]


def test_control_characters_in_names_are_replaced() -> None:
    stream = io.StringIO()
    progress_on(stream, Clock()).evaluation("airline", {}, row=0, when="\x1b[2Jair\nline\u202e")
    assert stream.getvalue() == "�[2Jair�line�: airline \n"
    assert printable("näme") == "näme"


def test_times_are_formatted_like_a_clock() -> None:
    assert clock_time(0) == "0:00"
    assert clock_time(125.4) == "2:05"
    assert clock_time(3723) == "1:02:03"


def test_a_closed_pipe_ends_the_output_and_not_the_run() -> None:
    attempts: list[str] = []

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            attempts.append(text)
            raise BrokenPipeError

    progress = progress_on(Closed(), Clock())
    progress.step(0, 1, {})
    progress.step(0, 2, {})
    assert len(attempts) == 1
