from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

from grpo_cl.llm import Completion, ModelUse, Reply


class Clock:
    """Shows the time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Timeline:
    """Enters and leaves episodes and calls at given times."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.use = ModelUse(self.clock)
        self._open: dict[str, ExitStack] = {}

    def at(self, second: float, *, begin: str = "", end: str = "") -> None:
        self.clock.now_s = 100.0 + second
        if end:
            self._open.pop(end).close()
        if begin:
            stack = self._open[begin] = ExitStack()
            stack.enter_context(self._context(begin))

    def _context(self, name: str) -> AbstractContextManager[None]:
        return self.use.episode() if name.startswith("episode") else self.use.call()

    def take(self) -> dict[str, float]:
        self.use.add(Reply(Completion(), "digest"))  # without calls nothing is taken
        taken = self.use.take()
        return {name: value for name, value in taken.items() if name.endswith("_s")}


def test_waiting_times_of_two_episodes_and_a_judge_are_those_worked_out_by_hand() -> None:
    # second     0 1 2 3 4 5 6 7 8 9
    # episode a  [=============]      8 s, of which it waits from 1 to 4 and from 5 to 7
    # episode b  [=========]          6 s, of which it waits from 2 to 6
    # both wait from 2 to 4 and from 5 to 6, a alone from 6 to 7 while b is over: idle for 4 s
    # the judge is called from 8 to 10, when no episode runs: idle for 2 s more
    line = Timeline()
    line.at(0, begin="episode a")
    line.at(0, begin="episode b")
    line.at(1, begin="user of a")
    line.at(2, begin="user of b")
    line.at(4, end="user of a")
    line.at(5, begin="user of a")
    line.at(6, end="user of b")
    line.at(6, end="episode b")
    line.at(7, end="user of a")
    line.at(8, end="episode a")
    line.at(8, begin="judge")
    line.at(10, end="judge")
    assert line.take() == {
        "episode_s": 14.0,
        "user_wait_s": 9.0,
        "scoring_wait_s": 2.0,
        "policy_idle_s": 6.0,
    }
    assert set(line.take().values()) == {0.0}


def test_concurrent_calls_of_judges_count_once_as_wall_time() -> None:
    line = Timeline()
    line.at(0, begin="judge 1")
    line.at(1, begin="judge 2")
    line.at(2, end="judge 1")
    line.at(4, end="judge 2")
    taken = line.take()
    assert (taken["scoring_wait_s"], taken["policy_idle_s"]) == (4.0, 4.0)
    assert taken["user_wait_s"] == 0.0


def test_time_of_what_goes_on_is_divided_between_two_takes() -> None:
    line = Timeline()
    line.at(0, begin="episode")
    line.at(1, begin="user")
    line.at(3)
    assert line.take()["user_wait_s"] == 2.0
    line.at(4, end="user")
    line.at(6, end="episode")
    taken = line.take()
    assert (taken["episode_s"], taken["user_wait_s"]) == (3.0, 1.0)


def replies() -> Iterator[Reply]:
    completion = Completion(content="text", input_tokens=10, output_tokens=3)
    yield Reply(completion, "a", cost=0.5)
    yield Reply(completion, "b", cost=0.25)
    yield Reply(completion, "a", is_cached=True)


def test_cached_replies_count_as_calls_but_cost_nothing() -> None:
    use = ModelUse(Clock())
    for reply in replies():
        use.add(reply)
    taken = use.take()
    assert (taken["model_calls"], taken["model_calls_cached"]) == (3.0, 1.0)
    assert (taken["model_input_tokens"], taken["model_output_tokens"]) == (20.0, 6.0)
    assert taken["model_cost"] == 0.75


def test_nothing_is_taken_if_no_model_was_called() -> None:
    use = ModelUse(Clock())
    with use.episode():
        pass
    assert use.take() == {}
