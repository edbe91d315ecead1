"""What writers that follow a rule earn in the memory domain, under wide and tight contexts.

``python benchmarks/memory_baselines.py [--count 40] [--difficulty 0.5]``, see docs/memory.md.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from grpo_cl.memory import Instance
from grpo_cl.memory.baselines import WRITERS, Writer, write
from grpo_cl.memory.content import Rules
from grpo_cl.memory.examination import Answered, Examiner, Reading
from grpo_cl.memory.generator import LexiconReader, generate_instances
from grpo_cl.memory.scoring import StepScore, Weights, answer_rate, score_steps

BUDGETS = (2048, 256, 96, 48)
"""Tokens that are read for one question."""


def main() -> None:
    """Print one row per writer, and the answers by kind of question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--difficulty", type=float, default=None)
    arguments = parser.parse_args()
    instances = generate_instances(
        0, arguments.count, difficulty=arguments.difficulty, split="test"
    )
    budgets = " ".join(f"r1@{budget:<5}" for budget in BUDGETS)
    print(f"{'writer':13} {budgets}    r2     r3     r4    r_t")
    kinds: dict[str, dict[str, float]] = {}
    for name, writer in WRITERS.items():
        rates = [_rate(instances, writer, budget) for budget in BUDGETS]
        steps, kinds[name] = _steps(instances, writer)
        means = [fmean(values) for values in zip(*steps, strict=True)][1:]
        total = fmean(step.total(Weights()) for step in steps)
        shown = " ".join(f"{rate:.3f}   " for rate in rates)
        print(f"{name:13} {shown} " + " ".join(f"{mean:6.3f}" for mean in (*means, total)))
    print("\nr1 at 256 tokens by kind of question")
    names = sorted({kind for found in kinds.values() for kind in found})
    print(f"{'writer':13} " + " ".join(f"{name:>10}" for name in names))
    for name, found in kinds.items():
        print(f"{name:13} " + " ".join(f"{found.get(kind, 0):10.3f}" for kind in names))


def _rate(instances: Sequence[Instance], writer: Writer, budget: int) -> float:
    return fmean(answer_rate(_answers(each, writer, budget)) for each in instances)


def _answers(instance: Instance, writer: Writer, budget: int) -> list[Answered]:
    examiner = Examiner(LexiconReader(), reading=Reading(tokens=budget))
    return examiner.examine(write(instance, writer).memory, instance.questions)


def _steps(
    instances: Sequence[Instance], writer: Writer
) -> tuple[list[StepScore], dict[str, float]]:
    steps: list[StepScore] = []
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for instance in instances:
        diary = write(instance, writer)
        answered = _answers(instance, writer, 256)
        steps += score_steps(diary, Rules().judge(diary.steps).valid, answered, Weights())
        for each in answered:
            kinds[each.question.qtype].append(each.score)
    return steps, {kind: fmean(scores) for kind, scores in kinds.items()}


if __name__ == "__main__":
    main()
