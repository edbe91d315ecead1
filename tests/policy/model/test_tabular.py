from collections.abc import Callable
from math import exp, log
from pathlib import Path

import pytest
import torch

from grpo_cl.envs import load_domain
from grpo_cl.envs.toy.domain import OPTIONS, signal_names
from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.rollout import run_episodes
from grpo_cl.types import Termination, TokenTrace, Trajectory
from parameters import mostly_slow
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


def probability(policy: PolicyRuntime, signal: str, option: str) -> float:
    ids_BT = torch.tensor([tokens(signal, option)])
    scores = policy.model.logprobs(ids_BT, torch.ones_like(ids_BT))
    return exp(scores.logprobs_BT[0, 1].item())


def trace(policy: PolicyRuntime, signal: str, option: str) -> TokenTrace:
    logprob = log(probability(policy, signal, option))
    return TokenTrace(
        ids=tokens(signal, option), mask=(False, True), logprobs=(logprob,), turns=((1, 2),)
    )


def update_towards(policy: PolicyRuntime, signal: str, good: str, bad: str) -> None:
    episodes = group(trace(policy, signal, good), trace(policy, signal, bad))
    policy.update([episodes], [[0.5, -0.5]], auxiliary=None, transform=None)


def softmax(logit: float, other: float) -> float:
    """The probability of an option with ``logit`` if one has ``other`` and the rest zero."""
    return exp(logit) / (exp(logit) + exp(other) + NUM_OPTIONS - 2)


def play(policy: PolicyRuntime, count: int = 40) -> list[Trajectory]:
    domain = load_domain("toy_left")
    tasks = domain.generate(seed=0, count=count)
    actor = policy.actor(temperature=1.0)
    config = policy.config.rollout
    return run_episodes(actor, {domain.name: domain}, tasks, config, seeds=range(count))


def test_untrained_policy_is_uniform(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    for signal in signal_names():
        for option in OPTIONS:
            assert probability(policy, signal, option) == pytest.approx(1 / NUM_OPTIONS)


def test_episode_has_one_signal_and_one_option(
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


def test_first_update_changes_each_weight_by_the_learning_rate(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    update_towards(policy, "left-00", "left", "right")
    # The gradient of the logits is a multiple of (left: -1, right: +1), and the first step of Adam
    # is the learning rate in each weight, whatever the gradient's size. The shared feature is 2.
    logit = 3 * LEARNING_RATE
    assert probability(policy, "left-00", "left") == pytest.approx(softmax(logit, -logit), abs=1e-6)
    assert softmax(logit, -logit) == pytest.approx(0.265163, abs=1e-6)
    # A signal that was never shown has the shared part alone.
    logit = 2 * LEARNING_RATE
    assert probability(policy, "up-07", "left") == pytest.approx(softmax(logit, -logit), abs=1e-6)
    assert softmax(logit, -logit) == pytest.approx(0.242335, abs=1e-6)


def test_next_domain_overwrites_only_the_shared_weights(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    update_towards(policy, "left-00", "left", "right")
    policy.learner.reset_optimizer()
    update_towards(policy, "right-00", "right", "left")
    # The shared weights are back at zero; each signal keeps its own.
    logit = LEARNING_RATE
    for signal, option in (("left-00", "left"), ("right-00", "right")):
        assert probability(policy, signal, option) == pytest.approx(
            softmax(logit, -logit), abs=1e-6
        )
    assert softmax(logit, -logit) == pytest.approx(0.220593, abs=1e-6)
    assert probability(policy, "up-07", "left") == pytest.approx(1 / NUM_OPTIONS)


def test_sampler_and_learner_log_probs_agree(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    for _ in range(5):
        update_towards(policy, "left-03", "left", "down")
    for trajectory in play(policy):
        assert trajectory.tokens is not None
        ids_BT = torch.tensor([trajectory.tokens.ids])
        found = policy.model.logprobs(ids_BT, torch.ones_like(ids_BT)).logprobs_BT[0, 1].item()
        assert trajectory.tokens.logprobs == pytest.approx((found,), abs=1e-6)


def test_sampled_options_follow_their_probabilities(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime()
    for _ in range(4):
        update_towards(policy, "right-00", "left", "stay")
    expected = probability(policy, "left-00", "left")
    chosen = [episodes.tool_calls[0].arguments["option"] for episodes in play(policy, 1000)]
    assert chosen.count("left") / 1000 == pytest.approx(expected, abs=0.05)


def test_reference_keeps_the_earlier_probabilities(runtime: Callable[..., PolicyRuntime]) -> None:
    policy = runtime(kl_coef=0.1)
    update_towards(policy, "left-00", "left", "right")
    learned = probability(policy, "left-00", "left")
    with policy.model.reference():
        assert probability(policy, "left-00", "left") == pytest.approx(1 / NUM_OPTIONS)
    policy.model.refresh_reference()
    with policy.model.reference():
        assert probability(policy, "left-00", "left") == pytest.approx(learned)


@pytest.mark.parametrize("lora", [{"r": 0}, LORA])
def test_saved_policy_is_loaded_by_path(
    runtime: Callable[..., PolicyRuntime], tmp_path: Path, lora: dict[str, int]
) -> None:
    policy = runtime(lora=lora)
    update_towards(policy, "left-00", "left", "right")
    policy.save(tmp_path / "model")
    loaded = runtime(lora=lora, model_name_or_path=str(tmp_path / "model"))
    assert loaded.model.fingerprint() == policy.model.fingerprint()
    assert probability(loaded, "left-00", "left") == probability(policy, "left-00", "left") > 0.2
    assert play(loaded)[0].tool_calls[0].name == "choose"


def test_adapter_of_the_matrix_starts_without_effect(
    runtime: Callable[..., PolicyRuntime],
) -> None:
    policy = runtime(lora=LORA)
    shapes = [tuple(weight.shape) for _, weight in policy.model.trainable()]
    assert shapes == [(4, 1 + len(signal_names())), (NUM_OPTIONS, 4)]
    assert probability(policy, "up-00", "up") == pytest.approx(1 / NUM_OPTIONS)


def test_bfloat16_policy_can_be_trained(runtime: Callable[..., PolicyRuntime]) -> None:
    policy = runtime(model_dtype="bfloat16")
    update_towards(policy, "left-00", "left", "right")
    assert probability(policy, "left-00", "left") == pytest.approx(0.265163, abs=2e-3)


def test_task_of_another_domain_is_an_error(runtime: Callable[..., PolicyRuntime]) -> None:
    policy, domain = runtime(), load_domain("mock")
    task = domain.tasks("base")[0]
    with pytest.raises(TaskDataError, match="only tasks of the toy domains have one"):
        run_episodes(policy.actor(temperature=1.0), {"mock": domain}, [task], policy.config.rollout)


@pytest.mark.parametrize("seed", mostly_slow([0, 1], fast=[0]))
def test_each_domain_is_learned_and_the_previous_one_forgotten(tmp_path: Path, seed: int) -> None:
    toy_run(tmp_path / "run", seed=seed)
    base, first, second = scores(tmp_path / "run")
    assert base == pytest.approx([1 / NUM_OPTIONS] * 2, abs=0.15)
    assert first[0] > 0.75
    assert first[1] < 0.2
    assert second[1] > 0.75
    assert second[0] < 0.3


def test_gradient_checkpointing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tabular does not support gradient_checkpointing=true"):
        PolicyRuntime(toy_config(tmp_path, gradient_checkpointing=True))
