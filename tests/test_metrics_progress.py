import io

import pytest

from grpo_cl.metrics.progress import CLEAR_LINE, Progress, clock_time, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def progress_on(stream: io.StringIO, clock: Clock) -> Progress:
    return Progress(stream, domains=("airline", "retail"), steps_per_task=20, clock=clock)


def test_without_a_terminal_each_step_is_one_plain_line():
    stream = io.StringIO()
    progress = progress_on(stream, Clock())
    numbers = {"pass_rate": 0.125, "reward_max": 1.0, "loss": 0.12341, "reward_mean": 0.5}
    progress.step(0, 10, numbers | {"kl": 3.0})
    progress.evaluation(0, "airline", {"pass_rate": 0.35})
    progress.step(0, 11, {"loss": None, "reward_mean": 0.25})
    progress.close()
    assert stream.getvalue() == (
        "Task 0, Step 10: loss=0.1234, reward_mean=0.500, reward_max=1.000, pass_rate=0.125\n"
        "Task 0, Eval airline: pass_rate=0.350\n"
        "Task 0, Step 11: reward_mean=0.250\n"
    )


def test_a_stall_is_told_after_thirty_seconds_of_silence():
    stream, clock = io.StringIO(), Clock()
    progress = progress_on(stream, clock)
    for second, done in ((10, 3), (29, 3), (31, 3), (40, 3), (62, 4)):
        clock.now = second
        progress.waiting(0, 1, done=done, total=8, what="episodes")
    assert stream.getvalue() == (
        "Task 0, Step 1: waiting, 3/8 episodes, 21 s since the last one\n"
        "Task 0, Step 1: waiting, 4/8 episodes, 0 s since the last one\n"
    )


def test_a_terminal_shows_one_line_that_is_drawn_again():
    stream, clock = Terminal(), Clock()
    progress = progress_on(stream, clock)
    clock.now = 5.0
    progress.step(1, 10, {"reward_mean": 0.5, "loss": 0.1, "tokens": 9000, "step_s": 4.5})
    line = stream.getvalue()
    assert line.startswith(CLEAR_LINE)
    assert "\n" not in line
    assert "retail 2/2  step 10/20  ━━━━━━━━━━━━━━━─────  reward 0.500" in line


def test_the_live_line_has_speed_and_time_left_where_the_screen_is_wide(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("COLUMNS", "160")
    stream, clock = Terminal(), Clock()
    progress = progress_on(stream, clock)
    clock.now = 5.0
    progress.step(1, 10, {"reward_mean": 0.5, "loss": 0.1, "tokens": 9000, "step_s": 4.5})
    assert stream.getvalue().endswith("loss 0.1000  2,000 tokens/s  0:50 left")
    clock.now = 6.0
    progress.waiting(1, 11, done=3, total=8, what="episodes")
    assert stream.getvalue().endswith("0:50 left  3/8 episodes")
    progress.evaluation(1, "retail", {"pass_rate": 0.5})
    assert stream.getvalue().endswith(
        f"{CLEAR_LINE}Task 1, Eval retail: pass_rate=0.500\n"
        "retail 2/2  step 10/20  ━━━━━━━━━━━━━━━─────  reward 0.500  loss 0.1000  "
        "2,000 tokens/s  0:50 left"
    )
    progress.close()
    assert stream.getvalue().endswith("left\n")


def test_the_live_line_has_success_beside_the_reward_that_is_learned_from(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    progress_on(stream, Clock()).step(0, 1, {"reward_mean": 0.5, "pass_rate": 0.25, "loss": 0.1})
    assert "reward 0.500  passed 0.250  loss 0.1000" in stream.getvalue()


def test_a_live_line_never_wraps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    progress_on(stream, Clock()).step(0, 1, {"reward_mean": 0.5, "loss": 0.1})
    assert len(stream.getvalue().removeprefix(CLEAR_LINE)) == 29


def test_time_spent_on_evaluation_does_not_count_as_training():
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, domains=("a",), steps_per_task=3, clock=clock)
    clock.now = 1.0
    progress.step(0, 1, {})
    clock.now = 100.0
    progress.evaluation(0, "a", {"pass_rate": 1.0})
    clock.now = 101.0
    progress.step(0, 2, {})
    assert stream.getvalue().endswith("0:01 left")


def test_no_name_can_steer_a_terminal():
    stream = io.StringIO()
    progress_on(stream, Clock()).evaluation(0, "\x1b[2Jair\nline\u202e", {"pass_rate": 1.0})
    assert stream.getvalue() == "Task 0, Eval �[2Jair�line�: pass_rate=1.000\n"
    assert printable("näme") == "näme"


def test_times_read_like_a_clock():
    assert clock_time(0) == "0:00"
    assert clock_time(125.4) == "2:05"
    assert clock_time(3723) == "1:02:03"
