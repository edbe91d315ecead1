"""GRPO in one file: a small policy learns to repair phones in τ²-bench's telecom domain.

    python examples/minimal_grpo.py            # about a minute on one CPU core

The policy is a GRU in plain PyTorch. It reads the messages of an episode as bags of words and
samples one token per turn; a token stands for one tool call. Everything a language model adds
(tokenizer, KV cache, LoRA, sharding) is left out, so that the whole algorithm fits on two pages:

    tasks -> G episodes per task -> rewards -> group advantages -> clipped loss -> update

`grpo_cl.trainer` does the same steps with language models; `docs/architecture.md` shows where.
"""

import argparse
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from grpo_cl import GRPOConfig, RewardOracle, TaskDataLoader
from grpo_cl.config import EvaluationConfig, RolloutConfig, TasksConfig
from grpo_cl.rollout import Scene, run_episodes
from grpo_cl.types import Message, Task, ToolCall

DOMAIN = "telecom"

# The actions of the policy: checks that change nothing, and repairs that need no identifier.
# `done` ends an episode without a user.
ACTIONS: list[tuple[str, dict[str, str]]] = [
    ("done", {}),
    ("check_status_bar", {}),
    ("check_network_status", {}),
    ("check_wifi_calling_status", {}),
    ("can_send_mms", {}),
    ("toggle_airplane_mode", {}),
    ("toggle_data", {}),
    ("toggle_roaming", {}),
    ("toggle_wifi_calling", {}),
    ("reseat_sim_card", {}),
    ("reset_apn_settings", {}),
    ("reboot_device", {}),
    ("disconnect_vpn", {}),
    ("set_network_mode_preference", {"mode": "4g_5g_preferred"}),
    ("grant_app_permission", {"app_name": "messaging", "permission": "sms"}),
    ("grant_app_permission", {"app_name": "messaging", "permission": "storage"}),
]
NUM_WORDS = 512


class Policy(nn.Module):
    """π(action | everything read so far): bags of words into a GRU, logits over actions."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(NUM_WORDS, width, mode="sum")
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(ACTIONS))

    def step(self, words: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the next action of one episode, and the new GRU state."""
        hidden, new_state = self.gru(self.words(words[None])[None], state)
        return self.head(hidden[0, 0]).log_softmax(-1), new_state

    def forward(self, episodes: Sequence["Record"]) -> Tensor:
        """Log-probabilities of the sampled actions, episodes after one another."""
        turns = [words for episode in episodes for words in episode.words]
        starts = torch.tensor([0, *map(len, turns[:-1])]).cumsum(0)
        embedded = self.words(torch.cat(turns), starts)
        lengths = [len(episode.words) for episode in episodes]
        padded = nn.utils.rnn.pad_sequence(embedded.split(lengths), batch_first=True)
        hidden, _ = self.gru(padded)
        # Padding stands behind the last turn of a row, so it never reaches a real turn.
        rows = torch.cat([hidden[row, :length] for row, length in enumerate(lengths)])
        actions = torch.tensor([action for episode in episodes for action in episode.actions])
        return self.head(rows).log_softmax(-1).gather(1, actions[:, None])[:, 0]


class Record(NamedTuple):
    """What the update needs of an episode: the inputs, actions and log-probs as sampled."""

    words: list[Tensor]
    actions: list[int]
    logprobs: list[float]


class Agent:
    """The policy in one episode; `run_episodes` asks it for one message at a time."""

    def __init__(self, policy: Policy, ticket: str, generator: torch.Generator) -> None:
        self.record = Record([], [], [])
        self._policy = policy
        self._unread = [ticket]
        self._num_read = 0
        self._state: Tensor | None = None
        self._generator = generator

    async def act(self, messages: Sequence[Message]) -> Message:
        """Read what is new, sample an action, return it as a tool call."""
        new = messages[self._num_read :]
        self._unread += [message.content for message in new if message.content]
        words = word_ids(" ".join(self._unread))
        with torch.no_grad():
            logprobs, self._state = self._policy.step(words, self._state)
        action = int(torch.multinomial(logprobs.exp(), 1, generator=self._generator))
        # The update compares π_new with the policy that sampled, so its log-prob is kept as it was.
        self.record.words.append(words)
        self.record.actions.append(action)
        self.record.logprobs.append(float(logprobs[action]))
        self._num_read, self._unread = len(messages) + 1, [f"action{action}"]
        name, arguments = ACTIONS[action]
        call = ToolCall(id=f"call_{len(messages)}", name=name, arguments=dict(arguments))
        return Message(role="assistant", tool_calls=(call,))

    def trace(self) -> None:
        """There are no language-model tokens to record."""


class PolicyActor:
    """Makes an agent for every episode; the seed of an episode decides all its samples."""

    def __init__(self, policy: Policy) -> None:
        self.records: dict[int, Record] = {}
        self._policy = policy

    def join(self, scene: Scene) -> Agent:
        """The agent of one episode."""
        generator = torch.Generator().manual_seed(scene.seed)
        agent = Agent(self._policy, scene.task.ticket or "", generator)
        self.records[scene.seed] = agent.record
        return agent


def word_ids(text: str) -> Tensor:
    """The words of a text as hashed ids; no vocabulary file is needed."""
    words = re.findall(r"[a-z_0-9]+", text.lower()) or ["nothing"]
    return torch.tensor([zlib.crc32(word.encode()) % NUM_WORDS for word in words])


class Rollouts(NamedTuple):
    """Scored episodes, those of one task after one another."""

    records: list[Record]
    rewards: Tensor


def rollout(
    policy: Policy, tasks: Sequence[Task], loader: TaskDataLoader, *, size: int, seed: int
) -> Rollouts:
    """Play every task ``size`` times and score the episodes by τ²-bench's rules."""
    repeated = [task for task in tasks for _ in range(size)]
    seeds = [seed * 1_000_000 + index for index in range(len(repeated))]
    actor = PolicyActor(policy)
    limits = RolloutConfig(user="solo", max_turns=10)
    trajectories = run_episodes(actor, loader.domains, repeated, limits, seeds=seeds)
    oracle = RewardOracle(loader.domains)
    rewards = [oracle.score(trajectory).value for trajectory in trajectories]
    return Rollouts([actor.records[seed] for seed in seeds], torch.tensor(rewards))


def group_advantages(rewards: Tensor, size: int) -> Tensor:
    """Reward minus the mean of its group.

    The group is the baseline: no value network is needed. Dividing by the standard deviation, as
    the first GRPO paper does, would weight almost solved and almost hopeless tasks most
    (Dr. GRPO, arXiv:2503.20783).
    """
    groups = rewards.view(-1, size)
    return (groups - groups.mean(1, keepdim=True)).flatten()


def grpo_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip: float = 0.2
) -> Tensor:
    """The clipped surrogate of PPO per token, averaged over the tokens of the batch (DAPO)."""
    ratio = (logprobs - old_logprobs).exp()
    # Outside the clip range the gradient is zero, so several updates per rollout stay close to
    # the policy that sampled.
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, rollouts: Rollouts, *, size: int
) -> float:
    """Two optimizer steps on one batch of rollouts; the last loss."""
    advantages = group_advantages(rollouts.rewards, size)
    # Episodes of a group with equal rewards have advantage 0 and no gradient: leave them out.
    kept = [index for index, advantage in enumerate(advantages) if advantage != 0]
    if not kept:
        return 0.0
    episodes = [rollouts.records[index] for index in kept]
    old_logprobs = torch.tensor([value for episode in episodes for value in episode.logprobs])
    lengths = torch.tensor([len(episode.actions) for episode in episodes])
    per_token = advantages[kept].repeat_interleave(lengths)  # every token shares its episode's
    loss = torch.zeros(())
    for _ in range(2):
        loss = grpo_loss(policy(episodes), old_logprobs, per_token)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return loss.item()


def train(*, steps: int, seed: int, num_tasks: int = 12, size: int = 12) -> tuple[float, float]:
    """Train and print a line per step; mean reward on test tasks before and after."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = GRPOConfig(
        task_order=(DOMAIN,),
        seed=seed,
        tasks=TasksConfig(own=False, generated=200, difficulty=0.0),
        evaluation=EvaluationConfig(generated=40),
    )
    loader = TaskDataLoader(config)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    test_tasks = loader.evaluation_tasks(DOMAIN)
    before = float(rollout(policy, test_tasks, loader, size=4, seed=0).rewards.mean())
    print(f"test reward before training {before:.3f}")
    for step in range(1, steps + 1):
        tasks = loader.next_batch(DOMAIN, num_tasks)
        rollouts = rollout(policy, tasks, loader, size=size, seed=step)
        loss = update(policy, optimizer, rollouts, size=size)
        print(f"step {step}: reward {rollouts.rewards.mean():.3f}, loss {loss:+.4f}")
    after = float(rollout(policy, test_tasks, loader, size=4, seed=0).rewards.mean())
    print(f"test reward after training {after:.3f}")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO in one file, on a CPU.")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(steps=arguments.steps, seed=arguments.seed)
