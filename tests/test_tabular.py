from collections.abc import Callable
from math import exp, log
from pathlib import Path

import pytest
import torch

from grpo_cl.domains import load_domain
from grpo_cl.domains.toy import OPTIONS, signal_names
from grpo_cl.errors import TaskDataError
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.rollout import run_episodes
from grpo_cl.types import Termination, TokenTrace, Trajectory
from tiny_learners import group
from toy_runs import LORA, scores, toy_config, toy_run

NUM_OPTIONS = len(OPTIONS)
UNIFORM = log(1 / NUM_OPTIONS)
LEARNING_RATE = 0.1


@pytest.fixture
def runtime(tmp_path: Path) -> Callable[..., PolicyRuntime]:
    def make(**changes: object) -> PolicyRuntime:
        settings = {"learning_rate": LEARNING_RATE, "kl_coef": 0.0, **changes}
        return PolicyRuntime(toy_config(tmp_path, **settings))

    return make


def tokens(signal: str, option: str) -> tuple[int, int]:
    return NUM_OPTIONS + signal_names().index(signal), OPTIONS.index(option)


def chance(policy: PolicyRuntime, signal: str, option: str) -> float:
    ids_BT = torch.tensor([tokens(signal, option)])
    scores = policy.model.logprobs(ids_BT, torch.ones_like(ids_BT))
    return exp(scores.logprobs_BT[0, 1].item())


def trace(policy: PolicyRuntime, signal: str, option: str) -> TokenTrace:
    logprob = log(chance(policy, signal, option))
    return TokenTrace(
        ids=tokens(signal, option), mask=(False, True), logprobs=(logprob,), turns=((1, 2),)
    )


def reward_one_and_not_the_other(policy: PolicyRuntime, signal: str, good: str, bad: str) -> None:
    played = group(trace(policy, signal, good), trace(policy, signal, bad))
    policy.update([played], [[0.5, -0.5]], auxiliary=None, transform=None)


def softmax(logit: float, other: float) -> float:
    """The probability of an option with ``logit`` if one has ``other`` and the rest zero."""
    return exp(logit) / (exp(logit) + exp(other) + NUM_OPTIONS - 2)


def play(policy: PolicyRuntime, count: int = 40) -> list[Trajectory]:
    domain = load_domain("toy_left")
    tasks = domain.generate(seed=0, count=count)
    actor = policy.actor(temperature=1.0)
    config = policy.config.rollout
    return run_episodes(actor, {domain.name: domain}, tasks, config, seeds=range(count))


def test_before_it_learns_every_option_is_equally_likely(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    for signal in signal_names():
        for option in OPTIONS:
            assert chance(policy, signal, option) == pytest.approx(1 / NUM_OPTIONS)


def test_an_episode_is_a_signal_an_option_and_the_end(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    for trajectory in play(runtime()):
        assert trajectory.termination == Termination.AGENT_STOP
        (call,) = trajectory.tool_calls
        signal = str(trajectory.task.ticket).split()[-1].rstrip(".")
        option = str(call.arguments["option"])
        assert trajectory.tokens is not None
        found = trajectory.tokens
        assert (found.ids, found.mask, found.turns) == (
            tokens(signal, option),
            (False, True),
            ((1, 2),),
        )
        assert found.logprobs == pytest.approx((UNIFORM,))
        assert not found.is_truncated


def test_the_first_update_moves_each_weight_by_the_learning_rate(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    reward_one_and_not_the_other(policy, "left-00", "left", "right")
    # The gradient of the logits is a multiple of (left: -1, right: +1), and the first step of Adam
    # is the learning rate in each weight, whatever the gradient's size. The shared feature is 2.
    logit = 3 * LEARNING_RATE
    assert chance(policy, "left-00", "left") == pytest.approx(softmax(logit, -logit), abs=1e-6)
    assert softmax(logit, -logit) == pytest.approx(0.265163, abs=1e-6)
    # A signal that was never shown has the shared part alone.
    logit = 2 * LEARNING_RATE
    assert chance(policy, "up-07", "left") == pytest.approx(softmax(logit, -logit), abs=1e-6)
    assert softmax(logit, -logit) == pytest.approx(0.242335, abs=1e-6)


def test_the_next_domain_overwrites_what_is_shared_and_only_that(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    reward_one_and_not_the_other(policy, "left-00", "left", "right")
    policy.learner.forget_moments()
    reward_one_and_not_the_other(policy, "right-00", "right", "left")
    # The shared weights are back at zero; each signal keeps its own.
    logit = LEARNING_RATE
    for signal, option in (("left-00", "left"), ("right-00", "right")):
        assert chance(policy, signal, option) == pytest.approx(softmax(logit, -logit), abs=1e-6)
    assert softmax(logit, -logit) == pytest.approx(0.220593, abs=1e-6)
    assert chance(policy, "up-07", "left") == pytest.approx(1 / NUM_OPTIONS)


def test_the_sampler_and_the_learner_agree_on_the_chances(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    for _ in range(5):
        reward_one_and_not_the_other(policy, "left-03", "left", "down")
    for trajectory in play(policy):
        assert trajectory.tokens is not None
        ids_BT = torch.tensor([trajectory.tokens.ids])
        found = policy.model.logprobs(ids_BT, torch.ones_like(ids_BT)).logprobs_BT[0, 1].item()
        assert trajectory.tokens.logprobs == pytest.approx((found,), abs=1e-6)


def test_options_are_chosen_as_often_as_their_chance_says(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    for _ in range(4):
        reward_one_and_not_the_other(policy, "right-00", "left", "stay")
    expected = chance(policy, "left-00", "left")
    chosen = [played.tool_calls[0].arguments["option"] for played in play(policy, 1000)]
    assert chosen.count("left") / 1000 == pytest.approx(expected, abs=0.05)


def test_the_reference_stays_where_the_policy_was(runtime: Callable[..., PolicyRuntime]) -> None:
    policy = runtime(kl_coef=0.1)
    reward_one_and_not_the_other(policy, "left-00", "left", "right")
    learned = chance(policy, "left-00", "left")
    with policy.model.reference():
        assert chance(policy, "left-00", "left") == pytest.approx(1 / NUM_OPTIONS)
    policy.model.refresh_reference()
    with policy.model.reference():
        assert chance(policy, "left-00", "left") == pytest.approx(learned)


@pytest.mark.parametrize("lora", [{"r": 0}, LORA])
def test_a_saved_policy_is_loaded_as_any_other_model(
    runtime: Callable[..., PolicyRuntime], tmp_path: Path, lora: dict[str, int]
) -> None:
    policy = runtime(lora=lora)
    reward_one_and_not_the_other(policy, "left-00", "left", "right")
    policy.save(tmp_path / "model")
    again = runtime(lora=lora, model_name_or_path=str(tmp_path / "model"))
    assert again.model.fingerprint() == policy.model.fingerprint()
    assert chance(again, "left-00", "left") == chance(policy, "left-00", "left") > 0.2
    assert play(again)[0].tool_calls[0].name == "choose"


def test_an_adapter_sits_on_the_one_matrix_and_starts_without_effect(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime(lora=LORA)
    shapes = [tuple(weight.shape) for _, weight in policy.model.trainable()]
    assert shapes == [(4, 1 + len(signal_names())), (NUM_OPTIONS, 4)]
    assert chance(policy, "up-00", "up") == pytest.approx(1 / NUM_OPTIONS)


def test_a_half_precision_policy_learns_too(runtime: Callable[..., PolicyRuntime]) -> None:
    policy = runtime(model_dtype="bfloat16")
    reward_one_and_not_the_other(policy, "left-00", "left", "right")
    assert chance(policy, "left-00", "left") == pytest.approx(0.265163, abs=2e-3)


def test_it_plays_no_other_domain(runtime: Callable[..., PolicyRuntime]) -> None:
    policy, domain = runtime(), load_domain("mock")
    task = domain.tasks("base")[0]
    with pytest.raises(TaskDataError, match="only tasks of the toy domains do"):
        run_episodes(policy.actor(temperature=1.0), {"mock": domain}, [task], policy.config.rollout)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_domain_is_learned_and_the_one_before_it_forgotten(tmp_path: Path, seed: int) -> None:
    toy_run(tmp_path / "run", seed=seed)
    base, first, second = scores(tmp_path / "run")
    assert base == pytest.approx([1 / NUM_OPTIONS] * 2, abs=0.15)
    assert first[0] > 0.75
    assert first[1] < 0.2
    assert second[1] > 0.75
    assert second[0] < 0.3
