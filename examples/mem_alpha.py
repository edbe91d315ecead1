"""Mem-α's trainer with a policy of your own: learn which lines of a conversation to remember.

    python examples/mem_alpha.py            # about a minute on one CPU core

The policy is a linear layer in plain PyTorch over the words of a line. For every line of a chunk
it samples one token: 1 stores the line as a memory entry, 0 leaves it out. Facts must be stored,
since questions are asked about them later; small talk and hypotheticals must not. The policy is
told neither: it sees rewards only. Everything else (episodes, rewards r1 to r4, advantages, the
clipped loss, checkpoints) is what a language model is trained with, which is one line instead:

    trainer = GRPOTrainer("Qwen/Qwen3-4B", RewardCalculator(beta=0.05, gamma=0.1), config)
"""

import argparse
import json
import re
import tempfile
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn

from grpo_cl.envs.memory.generator import generate_instances
from grpo_cl.mem_alpha import (
    Completion,
    GRPOTrainer,
    RewardCalculator,
    TorchPolicy,
    TrainingInstance,
)

WORDS = 512
"""Words are hashed to this many features."""


class LineSelector(TorchPolicy):
    """Stores or skips each line of a chunk; implements the protocol ``PolicyModel``."""

    def __init__(self) -> None:
        layer = nn.Linear(WORDS, 2)
        nn.init.zeros_(layer.weight)  # the untrained policy stores half of the lines
        nn.init.zeros_(layer.bias)
        super().__init__(layer)

    def generate(self, prompt: str, *, temperature: float, seed: int) -> Completion:
        """Sample one decision per line; the stored lines become calls of ``memory_insert``."""
        lines = lines_of(prompt)
        with torch.no_grad():
            logprobs = self._logprobs(lines)
        if temperature:
            generator = torch.Generator().manual_seed(seed)
            decisions = torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
        else:
            decisions = logprobs.argmax(-1)
        stored = [line for line, token in zip(lines, decisions.tolist(), strict=True) if token]
        calls = [{"name": "memory_insert", "arguments": {"content": line}} for line in stored]
        text = "\n".join(map(json.dumps, calls)) or '{"action": "skip"}'
        sampled = logprobs.gather(-1, decisions[:, None])[:, 0]
        return Completion(text, decisions.tolist(), sampled.tolist())

    def get_log_prob(self, prompt: str, completion: Completion) -> Tensor:
        """The log-prob of each decision under the current weights, with a gradient."""
        decisions = torch.tensor(completion.ids)
        return self._logprobs(lines_of(prompt)).gather(-1, decisions[:, None])[:, 0]

    def _logprobs(self, lines: list[str]) -> Tensor:
        features = torch.zeros(len(lines), WORDS)
        for row, line in enumerate(lines):
            for word in re.findall(r"\w+", line.lower()):
                features[row, zlib.crc32(word.encode()) % WORDS] = 1.0
        return self.module(features).log_softmax(-1)


def lines_of(prompt: str) -> list[str]:
    """What the user says in the chunk at the end of the prompt."""
    chunk = prompt.rpartition("Chunk ")[2]
    return re.findall(r"^User: (.+)$", chunk, re.MULTILINE) or [chunk]


def instances(seed: int, count: int, split: str) -> list[TrainingInstance]:
    """Generated conversations with questions that rules can answer."""
    found = generate_instances(seed, count, difficulty=0.25, split=split)
    return [TrainingInstance.of(instance) for instance in found]


def train(steps: int, seed: int, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The mean rewards on test instances before and after training."""
    config: dict[str, object] = {
        "learning_rate": 0.05,
        "batch_size": 8,
        "grpo_rollout_n": 8,
        "max_steps": steps,
        "seed": seed,
        "settings": {"evaluation": {"trials": 2}},  # sampled, as the policy is trained
    }
    calculator = RewardCalculator(beta=0.05, gamma=0.1)
    trainer = GRPOTrainer(LineSelector(), calculator, config, log_dir=folder)
    data, test = instances(seed, 40, "train"), instances(0, 20, "test")
    before = trainer.evaluate(test)
    for step in range(steps):
        batch = [data[(8 * step + offset) % len(data)] for offset in range(8)]
        metrics = trainer.train_step(batch)
        print(f"step {step:3d}  reward {metrics['reward_mean']:.3f}  loss {metrics['loss']:+.4f}")
    trainer.save_checkpoint(folder / "last.json")
    return before, trainer.evaluate(test)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as log_dir:
        results = train(arguments.steps, arguments.seed, Path(log_dir))
    for title, means in zip(("before", "after"), results, strict=True):
        print(title, *(f"{name} {value:.3f}" for name, value in means.items()))
