"""Our side of the GPU benchmarks: a step by the pieces that a run is made of."""

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
from grpo_cl.domains import load_domain
from grpo_cl.policy.actor import PolicyActor
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.policy.sampler import Completion, Request, Sampler
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import run_episodes
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer.rollouts import collect, credit
from grpo_cl.trainer.settling import settle
from grpo_cl.types import Reward, Task, Termination, Trajectory, TrajectoryGroup

DOMAIN = "telecom"


def ours(work: Work, report: Report, *, engine: str = "transformers") -> None:
    """Steps of a run, one after another."""
    step = Step(work, engine)
    settle()
    for number in range(work.steps):
        report(step.take(number))


def agentic_settings(work: Work) -> dict[str, Any]:
    """How episodes are played, for either side."""
    return {
        "model_name_or_path": work.model,
        "task_order": [DOMAIN],
        "max_new_tokens": work.reply_tokens,
        "num_samples_per_prompt": work.samples,
        "rollout": {"user": "solo", "prompt": "full", "max_turns": work.max_turns},
        "sampling": {"max_context": work.context, "slots": work.replies},
    }


def agentic_tasks(work: Work, config: GRPOConfig) -> list[Task]:
    """The tasks of every step."""
    return TaskDataLoader(config).train_tasks(DOMAIN)[: work.prompts]


def _settings(work: Work, engine: str) -> GRPOConfig:
    played = agentic_settings(work)
    sampling = {
        **played["sampling"],
        "engine": engine,
        "gpu_share": GPU_SHARE,
    }
    return GRPOConfig.model_validate(
        {
            **played,
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


class Timed:
    """A sampler whose time is counted."""

    def __init__(self, sampler: Sampler, watch: Stopwatch) -> None:
        self.context = sampler.context
        self._sampler = sampler
        self._watch = watch

    def submit(self, requests: Iterable[Request]) -> None:
        """Take requests; a sequence has one at a time."""
        started = time.perf_counter()
        self._sampler.submit(requests)
        self._watch.add("sample", time.perf_counter() - started)

    def poll(self) -> list[Completion]:
        """Work for a while; the replies finished meanwhile, perhaps none."""
        # Without waiting for the GPU, which an engine may leave at work on the next tokens.
        started = time.perf_counter()
        found = self._sampler.poll()
        self._watch.add("sample", time.perf_counter() - started)
        return found

    def release(self, sequence: int) -> None:
        """Forget a sequence and whatever it still waits for."""
        self._sampler.release(sequence)


class Step:
    """Rollouts and update of one policy."""

    def __init__(self, work: Work, engine: str) -> None:
        self.work = work
        self.config = _settings(work, engine)
        self.runtime = PolicyRuntime(self.config)
        self.watch = Stopwatch()
        plain = self.runtime.model.reference

        @contextmanager
        def reference() -> Generator[None]:
            with self.watch.span("reference"), plain():
                yield

        self.runtime.model.__dict__["reference"] = reference
        self._player = Episodes(self) if work.kind == "agentic" else Replies(self)

    def take(self, number: int) -> Numbers:
        """Roll out, score, learn; where the time went."""
        self.watch = Stopwatch()
        started = now()
        groups = self._player.groups(number)
        played = now()
        # TRL learns from every group too, whether or not its rewards differ.
        advantages = [credit(group, group.training_rewards, self.config) for group in groups]
        self.runtime.update(groups, advantages, auxiliary=None, transform=None)
        ended = now()
        spent = self.watch.seconds
        rest = played - started - spent["sync"] - spent["sample"]
        update = ended - played - spent.get("reference", 0.0)
        times = {"step": ended - started, **spent, "environment": rest, "update": update}
        return {**times, **_amounts(groups), "peak": peak_gib()}

    def actor(self) -> PolicyActor:
        """The policy, its sampler under the watch."""
        actor = self.runtime.actor(temperature=1.0)
        assert isinstance(actor, PolicyActor)
        actor.desk.sampler = Timed(actor.desk.sampler, self.watch)
        return actor

    def sync(self) -> None:
        """Bring today's weights to the sampler."""
        with self.watch.span("sync"):
            self.runtime.spread(0, lambda _: [])


def _amounts(groups: Sequence[TrajectoryGroup]) -> Numbers:
    traces = [one.tokens for group in groups for one in group.trajectories if one.tokens]
    return {
        "tokens": float(sum(sum(trace.mask) for trace in traces)),
        "turns": statistics.fmean(len(trace.turns) for trace in traces),
        "prompt": statistics.fmean(trace.turns[0][0] for trace in traces if trace.turns),
        "reward": statistics.fmean(value for group in groups for value in group.training_rewards),
    }


class Episodes:
    """Whole episodes of a domain, the same tasks at every step."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._loader = TaskDataLoader(step.config)
        self._tasks = self._loader.train_tasks(DOMAIN)[: step.work.prompts]
        self._oracle = RewardOracle(self._loader.domains, basis=step.config.reward.basis)

    def groups(self, number: int) -> list[TrajectoryGroup]:
        """Played and scored as the training loop does it."""
        return collect(
            self._tasks,
            play=self._play,
            score=self._oracle.score_all,
            config=self._step.config,
            label=f"step/{number}",
        )

    def _play(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[Trajectory]:
        self._step.sync()
        rollout = self._step.config.rollout
        return run_episodes(self._step.actor(), self._loader.domains, tasks, rollout, seeds=seeds)


class Replies:
    """Single replies to fixed prompts."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._tokenizer: Any = step.runtime.model.tokenizer
        self._task = load_domain("airline").tasks("base")[0]
        self._prompts: list[list[int]] = [
            self._tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)
            for one in prompts(self._tokenizer, step.work)
        ]

    def groups(self, number: int) -> list[TrajectoryGroup]:
        """The replies to each prompt, scored."""
        self._step.sync()
        replies = self._replies(number)
        size = self._step.work.samples
        return [
            self._group(prompt, replies[place * size : (place + 1) * size])
            for place, prompt in enumerate(self._prompts)
        ]

    def _replies(self, number: int) -> list[Completion]:
        sampler, work = self._step.actor().desk.sampler, self._step.work
        sampler.submit(
            Request(
                id=place,
                sequence=place,
                append=self._prompts[place // work.samples],
                max_new_tokens=work.reply_tokens,
                temperature=1.0,
                top_p=1.0,
                stop_ids=(self._tokenizer.eos_token_id,),
                seed=number * work.replies + place,
            )
            for place in range(work.replies)
        )
        found: list[Completion] = []
        while len(found) < work.replies:
            found += sampler.poll()
        for place in range(work.replies):
            sampler.release(place)
        return sorted(found, key=lambda reply: reply.id)

    def _group(self, prompt: Sequence[int], replies: Sequence[Completion]) -> TrajectoryGroup:
        values = [worth(text) for text in self._tokenizer.batch_decode([r.ids for r in replies])]
        return TrajectoryGroup(
            task=self._task,
            trajectories=tuple(_trajectory(self._task, prompt, reply) for reply in replies),
            rewards=tuple(Reward(value=v, basis=None, basis_name="none") for v in values),
            training_rewards=tuple(values),
        )


def _trajectory(task: Task, prompt: Sequence[int], reply: Completion) -> Trajectory:
    trace = one_reply(prompt, reply.ids, reply.logprobs)
    return Trajectory(task=task, messages=(), termination=Termination.AGENT_STOP, tokens=trace)
