"""Multi-turn sampling: the transformers sampler against a full prefill at every turn.

    python benchmarks/sampler.py

The baseline is Hugging Face's ``generate``: every turn it left-pads all conversations, prefills
them from their first token and decodes until the longest reply is done. Both sample the same
conversations, with replies of the same lengths, alternating in this process. Weights are random, so
reply lengths are given by a script. The figures are medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_cl.cli.output import table
from grpo_cl.policy.inference.sampler import GenerationRequest
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler

VOCABULARY = 2048
PAD = 0


class Turn(NamedTuple):
    """The tokens appended to an episode, and the length of its reply."""

    append: list[int]
    reply: int


Script = list[Turn]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    module = model().to(arguments.device)
    count = sum(weight.numel() for weight in module.parameters())
    rows: list[Sequence[object]] = [
        ("prompts", "generate s", "ours s", "generate tokens/s", "ours tokens/s", "ratio")
    ]
    for name, group in (("all different", 1), ("groups of 8", 8)):
        scripts = make_scripts(arguments.episodes, arguments.turns, group=group)
        rows.append((name, *compare(module, scripts, arguments.repeats)))
    print(
        f"{count / 1e6:.1f} M parameters, {arguments.episodes} episodes of {arguments.turns} turns"
    )
    print(table(rows))


def model() -> LlamaForCausalLM:
    """A small Llama with random weights."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def make_scripts(episodes: int, turns: int, *, group: int) -> list[Script]:
    """Conversations like those of an agent: a prompt, short replies, tool results."""
    rng = Random(0)
    prompts = [_ids(rng, 150, 350) for _ in range(0, episodes, group)]
    return [
        [
            Turn(_ids(rng, 20, 80) if turn else prompts[index // group], rng.randint(16, 48))
            for turn in range(turns)
        ]
        for index in range(episodes)
    ]


def _ids(rng: Random, low: int, high: int) -> list[int]:
    return [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(low, high))]


def compare(module: LlamaForCausalLM, scripts: list[Script], repeats: int) -> Sequence[object]:
    """Time both samplers on the same scripts."""
    times = [
        (_seconds(play_generate, module, scripts), _seconds(play_ours, module, scripts))
        for _ in range(repeats)
    ]
    baseline, ours = (statistics.median(column) for column in zip(*times, strict=True))
    tokens = sum(turn.reply for script in scripts for turn in script)
    rates = f"{tokens / baseline:.0f}", f"{tokens / ours:.0f}"
    return f"{baseline:.2f}", f"{ours:.2f}", *rates, f"{baseline / ours:.1f}x"


def _seconds(play: Callable[..., None], *arguments: Any) -> float:
    start = time.perf_counter()
    play(*arguments)
    return time.perf_counter() - start


def play_generate(module: Any, scripts: list[Script]) -> None:
    """All episodes in lockstep, each turn prefilled from the first token."""
    histories: list[list[int]] = [[] for _ in scripts]
    for turns in zip(*scripts, strict=True):
        for history, turn in zip(histories, turns, strict=True):
            history += turn.append
        width = max(map(len, histories))
        ids = [[PAD] * (width - len(history)) + history for history in histories]
        mask = [[0] * (width - len(history)) + [1] * len(history) for history in histories]
        output: Any = module.generate(
            torch.tensor(ids, device=module.device),
            attention_mask=torch.tensor(mask, device=module.device),
            max_new_tokens=max(turn.reply for turn in turns),
            do_sample=True,
            top_k=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        replies = output.sequences[:, width:].tolist()
        for step, logits in enumerate(
            output.logits
        ):  # a trainer needs the log-probs, so both compute them
            logits.float().log_softmax(-1).gather(1, output.sequences[:, width + step, None])
        for history, turn, reply in zip(histories, turns, replies, strict=True):
            history += reply[: turn.reply]


def play_ours(module: LlamaForCausalLM, scripts: list[Script]) -> None:
    """Continuous batching: an episode's next turn starts as soon as its reply is done."""
    sampler = TransformersSampler(module, context=4096, slots=len(scripts), device=module.device)
    turns = [0] * len(scripts)
    sampler.submit(_request(index, script[0], 0) for index, script in enumerate(scripts))
    while any(turn < len(script) for turn, script in zip(turns, scripts, strict=True)):
        for completion in sampler.poll():
            index = completion.id
            turns[index] += 1
            if turns[index] < len(scripts[index]):
                sampler.submit([_request(index, scripts[index][turns[index]], turns[index])])
            else:
                sampler.release(index)


def _request(index: int, turn: Turn, number: int) -> GenerationRequest:
    return GenerationRequest(
        index, index, turn.append, turn.reply, 1.0, 1.0, (), 1000 * index + number
    )


if __name__ == "__main__":
    main()
