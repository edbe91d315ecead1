"""GPU benchmarks of grpo-cl: training steps built from the parts of a run."""

import statistics
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from tempfile import mkdtemp
from typing import Any

from gpu_work import (
    GPU_SHARE,
    KL,
    LEARNING_RATE,
    LORA,
    Numbers,
    Report,
    Stopwatch,
    Work,
    now,
    one_reply,
    peak_gib,
    prompts,
    worth,
)
from grpo_cl.config import GRPOConfig
from grpo_cl.envs import load_domain
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.policy.inference.policy_agent import PolicyActor
from grpo_cl.policy.inference.sampler import GenerationRequest, Sampler, TokenCompletion
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.rewards import RewardOracle, ScoredTrajectory
from grpo_cl.rewards.advantages import compute_advantages
from grpo_cl.rollout import run_episodes
from grpo_cl.trainer.collect import collect
from grpo_cl.trainer.process import frozen_gc
from grpo_cl.types import Reward, Task, Termination, Trajectory, TrajectoryGroup

DOMAIN = "telecom"


def ours(work: Work, report: Report, *, engine: str = "transformers") -> None:
    """Run and report the training steps."""
    step = Step(work, engine)
    with frozen_gc():
        for number in range(work.steps):
            report(step.take(number))


def agentic_settings(work: Work) -> dict[str, Any]:
    """Episode settings, the same for grpo-cl and TRL."""
    prompt = "compact" if work.kind == "compact" else "full"
    return {
        "model_name_or_path": work.model,
        "task_order": [DOMAIN],
        "max_new_tokens": work.reply_tokens,
        "num_samples_per_prompt": work.samples,
        "rollout": {"user": "solo", "prompt": prompt, "max_turns": work.max_turns},
        "sampling": {"max_context": work.context, "slots": work.replies},
    }


def agentic_tasks(work: Work, config: GRPOConfig) -> list[Task]:
    """The tasks, the same at every step."""
    return TaskDataLoader(config).train_tasks(DOMAIN)[: work.prompts]


def _settings(work: Work, engine: str) -> GRPOConfig:
    settings = agentic_settings(work)
    sampling = {
        **settings["sampling"],
        "engine": engine,
        "gpu_share": GPU_SHARE,
    }
    return GRPOConfig.model_validate(
        {
            **settings,
            "log_dir": mkdtemp(),
            "kl_coef": KL,
            "temperature": 1.0,
            "learning_rate": LEARNING_RATE,
            "gradient_checkpointing": bool(work.checkpointing),
            "lora": LORA if work.adapters else {},
            "sampling": sampling,
            "optimizer": {"micro_batch_tokens": work.micro_tokens},
        }
    )


class TimedSampler:
    """A sampler with a stopwatch."""

    def __init__(self, sampler: Sampler, watch: Stopwatch) -> None:
        self.context = sampler.context
        self._sampler = sampler
        self._watch = watch

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        """Submit requests; at most one per sequence at a time."""
        started = time.perf_counter()
        self._sampler.submit(requests)
        self._watch.add("sample", time.perf_counter() - started)

    def poll(self) -> list[TokenCompletion]:
        """Continue sampling; returns the finished replies, if any."""
        # No synchronization: the sampler may overlap GPU work with the caller.
        started = time.perf_counter()
        completions = self._sampler.poll()
        self._watch.add("sample", time.perf_counter() - started)
        return completions

    def release(self, sequence: int) -> None:
        """Release a sequence and cancel its request."""
        self._sampler.release(sequence)


class Step:
    """Training steps (rollouts and update) of one policy."""

    def __init__(self, work: Work, engine: str) -> None:
        self.work = work
        self.config = _settings(work, engine)
        self.runtime = PolicyRuntime(self.config)
        self.watch = Stopwatch()
        untimed_reference = self.runtime.model.reference

        @contextmanager
        def reference() -> Generator[None]:
            with self.watch.span("reference"), untimed_reference():
                yield

        self.runtime.model.__dict__["reference"] = reference
        has_replies_only = work.kind in ("reference", "long")
        self._collector = ReplyCollector(self) if has_replies_only else EpisodeCollector(self)

    def take(self, number: int) -> Numbers:
        """Run one step; returns its times and counts."""
        self.watch = Stopwatch()
        started = now()
        groups = self._collector.groups(number)
        collected = now()
        # As in TRL, groups with equal rewards are not dropped.
        advantages = [
            compute_advantages(group, group.training_rewards, self.config) for group in groups
        ]
        self.runtime.update(groups, advantages, auxiliary=None, transform=None)
        ended = now()
        times = self.watch.seconds
        rest = collected - started - times["sync"] - times["sample"]
        update = ended - collected - times.get("reference", 0.0)
        times = {"step": ended - started, **times, "environment": rest, "update": update}
        return {**times, **_amounts(groups), "peak": peak_gib()}

    def actor(self) -> PolicyActor:
        """The policy's actor with a timed sampler."""
        actor = self.runtime.actor(temperature=1.0)
        assert isinstance(actor, PolicyActor)
        actor.queue.sampler = TimedSampler(actor.queue.sampler, self.watch)
        return actor

    def sync(self) -> None:
        """Push the current weights to the sampler."""
        with self.watch.span("sync"):
            self.runtime.sync_weights()


def _amounts(groups: Sequence[TrajectoryGroup]) -> Numbers:
    traces = [t.tokens for group in groups for t in group.trajectories if t.tokens]
    return {
        "tokens": float(sum(sum(trace.mask) for trace in traces)),
        "turns": statistics.fmean(len(trace.turns) for trace in traces),
        "prompt": statistics.fmean(trace.turns[0][0] for trace in traces if trace.turns),
        "reward": statistics.fmean(value for group in groups for value in group.training_rewards),
    }


class EpisodeCollector:
    """Collects episodes of a domain, with the same tasks at every step."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._loader = TaskDataLoader(step.config)
        self._tasks = self._loader.train_tasks(DOMAIN)[: step.work.prompts]
        self._oracle = RewardOracle(self._loader.domains, basis=step.config.reward.basis)

    def groups(self, number: int) -> list[TrajectoryGroup]:
        """Run and score the episodes of a step as the training loop does."""
        self._step.sync()
        return collect(
            self._tasks,
            DOMAIN,
            loader=self._loader,
            play=self._play,
            config=self._step.config,
            step=number,
        ).groups

    def _play(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[ScoredTrajectory]:
        rollout = self._step.config.rollout
        return self._oracle.score_all(
            run_episodes(self._step.actor(), self._loader.domains, tasks, rollout, seeds=seeds)
        )


class ReplyCollector:
    """Collects single replies to fixed prompts."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._tokenizer: Any = step.runtime.model.tokenizer
        self._task = load_domain("airline").tasks("base")[0]
        self._prompts: list[list[int]] = [
            self._tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_dict=False
            )
            for prompt in prompts(self._tokenizer, step.work)
        ]

    def groups(self, number: int) -> list[TrajectoryGroup]:
        """Sample and score the replies to each prompt."""
        self._step.sync()
        replies = self._replies(number)
        size = self._step.work.samples
        return [
            self._group(prompt, replies[index * size : (index + 1) * size])
            for index, prompt in enumerate(self._prompts)
        ]

    def _replies(self, number: int) -> list[TokenCompletion]:
        sampler, work = self._step.actor().queue.sampler, self._step.work
        sampler.submit(
            GenerationRequest(
                id=index,
                sequence=index,
                append=self._prompts[index // work.samples],
                max_new_tokens=work.reply_tokens,
                temperature=1.0,
                top_p=1.0,
                stop_ids=(self._tokenizer.eos_token_id,),
                seed=number * work.replies + index,
            )
            for index in range(work.replies)
        )
        completions: list[TokenCompletion] = []
        while len(completions) < work.replies:
            completions += sampler.poll()
        for index in range(work.replies):
            sampler.release(index)
        return sorted(completions, key=lambda reply: reply.id)

    def _group(self, prompt: Sequence[int], replies: Sequence[TokenCompletion]) -> TrajectoryGroup:
        values = [worth(text) for text in self._tokenizer.batch_decode([r.ids for r in replies])]
        return TrajectoryGroup(
            task=self._task,
            trajectories=tuple(_trajectory(self._task, prompt, reply) for reply in replies),
            rewards=tuple(Reward(value=v, basis=None, basis_name="none") for v in values),
            training_rewards=tuple(values),
        )


def _trajectory(task: Task, prompt: Sequence[int], reply: TokenCompletion) -> Trajectory:
    trace = one_reply(prompt, reply.ids, reply.logprobs)
    return Trajectory(task=task, messages=(), termination=Termination.AGENT_STOP, tokens=trace)
