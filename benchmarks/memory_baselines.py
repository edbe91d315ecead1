"""Scores of the baseline policies of the memory domain, under wide and tight context budgets.

    python benchmarks/memory_baselines.py [--count 40] [--difficulty 0.5]
    python benchmarks/memory_baselines.py --path PATH --format locomo

See docs/memory.md. Questions of loaded instances are not answered by rules, so two figures that
need no model stand beside r1: the score of the best-ranked entry as the answer, and the fraction of
answerable questions with a gold answer in the retrieved context, which bounds an answerer that
quotes.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from grpo_cl.cli.output import table
from grpo_cl.envs.memory import Instance, Question
from grpo_cl.envs.memory.baselines import BASELINES, BaselinePolicy, run_baseline
from grpo_cl.envs.memory.generator import RuleAnswerer, generate_instances
from grpo_cl.envs.memory.loaders import LoaderOptions, load_instances
from grpo_cl.envs.memory.rewards.answer_grading import UNKNOWN, normalized
from grpo_cl.envs.memory.rewards.content import RuleContentJudge
from grpo_cl.envs.memory.rewards.episode import MemoryEpisode
from grpo_cl.envs.memory.rewards.formulas import (
    StepScore,
    Weights,
    answer_rate,
    compression,
    score_steps,
)
from grpo_cl.envs.memory.rewards.question_answering import (
    Answer,
    Context,
    ContextBudget,
    GradedAnswer,
    QAPipeline,
)

BUDGETS = (2048, 256, 96, 48)
"""Context tokens per question."""
UNLABELLED = ("copy_lines", "copy_chunk", "idle")
"""The baselines that need no labels of the generator."""
CONTEXTS = (ContextBudget(), ContextBudget(tokens=2048, entries=50))


def main() -> None:
    """Print one row per baseline, and r1 by question type."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--difficulty", type=float, default=None)
    parser.add_argument("--path", type=Path, help="a file or folder of instances to load")
    parser.add_argument("--format", default="jsonl", help="its format")
    parser.add_argument("--chunk_tokens", type=int, default=LoaderOptions().chunk_tokens)
    arguments = parser.parse_args()
    if arguments.path:
        options = LoaderOptions(chunk_tokens=arguments.chunk_tokens)
        print_loaded(load_instances(arguments.path, arguments.format, options))
    else:
        print_generated(
            generate_instances(0, arguments.count, difficulty=arguments.difficulty, split="test")
        )


def print_generated(instances: Sequence[Instance]) -> None:
    """Scores under each budget, then by question type."""
    budgets = " ".join(f"r1@{budget:<5}" for budget in BUDGETS)
    print(f"{'writer':13} {budgets}    r2     r3     r4    r_t")
    kinds: dict[str, dict[str, float]] = {}
    for name, policy in BASELINES.items():
        rates = [_rate(instances, policy, budget) for budget in BUDGETS]
        steps, kinds[name] = _steps(instances, policy)
        means = [fmean(values) for values in zip(*steps, strict=True)][1:]
        total = fmean(step.total(Weights()) for step in steps)
        shown = " ".join(f"{rate:.3f}   " for rate in rates)
        print(f"{name:13} {shown} " + " ".join(f"{mean:6.3f}" for mean in (*means, total)))
    print("\nr1 at 256 tokens by kind of question")
    names = sorted({kind for found in kinds.values() for kind in found})
    print(f"{'writer':13} " + " ".join(f"{name:>10}" for name in names))
    for name, found in kinds.items():
        print(f"{name:13} " + " ".join(f"{found.get(kind, 0):10.3f}" for kind in names))


class BestEntry:
    """Answers with the text of the best-ranked entry."""

    def answer(self, questions: Sequence[tuple[str, Context]]) -> list[Answer]:
        """The answers, each from its own context only."""
        return [
            Answer(context.entries[0].content if context.entries else UNKNOWN)
            for _, context in questions
        ]


class LoadedScores(NamedTuple):
    """Scores of one question: with each answerer, and whether a context holds a gold answer."""

    rule: float
    best_entry: float
    in_context: tuple[bool | None, ...]
    """For each of ``CONTEXTS``, and for all chunks; None for an unanswerable question."""


def print_loaded(instances: Sequence[Instance]) -> None:
    """Memory size and scores of each baseline, then scores by question type."""
    chunks, questions = (
        sum(len(parts) for parts in column)
        for column in zip(*((i.chunks, i.questions) for i in instances), strict=True)
    )
    tokens = fmean(instance.tokens for instance in instances)
    print(
        f"{len(instances)} instances, {chunks} chunks, {questions} questions, {tokens:.0f} tokens"
    )
    names = [f"in {budget.tokens}, {budget.entries}" for budget in CONTEXTS]
    header = ("entries", "tokens", "calls", "r3", "r1 rules", "r1 best entry", *names, "in chunks")
    rows: list[Sequence[object]] = [("writer", *header)]
    by_type: list[Sequence[object]] = [("writer", "questions", "of", *header[4:])]
    for name in UNLABELLED:
        episodes = [run_baseline(instance, BASELINES[name]) for instance in instances]
        scores = [_loaded_scores(episode) for episode in episodes]
        pooled = [pair for pairs in scores for pair in pairs]
        rows.append((name, *_sizes(episodes), *_means([score for _, score in pooled])))
        for qtype in dict.fromkeys(question.qtype for question, _ in pooled):
            of_type = [score for question, score in pooled if question.qtype == qtype]
            by_type.append((name, qtype, len(of_type), *_means(of_type)))
    print(f"\n{table(rows)}\n\n{table(by_type)}")


def _sizes(episodes: Sequence[MemoryEpisode]) -> list[str]:
    """Entries, tokens, successful calls and r3, per instance."""
    calls = [call.outcome.ok for ep in episodes for step in ep.steps for call in step.calls]
    return [
        f"{fmean(len(episode.memory.entries) for episode in episodes):.0f}",
        f"{fmean(episode.memory.tokens() for episode in episodes):.0f}",
        f"{fmean(calls):.3f}" if calls else "",
        f"{fmean(compression(episode.memory, episode.instance) for episode in episodes):.3f}",
    ]


def _means(scores: Sequence[LoadedScores]) -> list[str]:
    contexts = zip(*(score.in_context for score in scores), strict=True)
    held = [[value for value in column if value is not None] for column in contexts]
    return [
        f"{fmean(score.rule for score in scores):.3f}",
        f"{fmean(score.best_entry for score in scores):.3f}",
        *(f"{fmean(column):.3f}" if column else "" for column in held),
    ]


def _loaded_scores(episode: MemoryEpisode) -> list[tuple[Question, LoadedScores]]:
    questions = episode.instance.questions
    by_rules, by_best_entry = (
        QAPipeline(answerer).answer_episode(episode, questions)
        for answerer in (RuleAnswerer(), BestEntry())
    )
    all_chunks = "\n".join(chunk.content for chunk in episode.instance.chunks)
    return [
        (
            question,
            LoadedScores(
                rule.score,
                best.score,
                tuple(
                    _holds_answer(text, question)
                    for text in (*_contexts(episode, question), all_chunks)
                ),
            ),
        )
        for question, rule, best in zip(questions, by_rules, by_best_entry, strict=True)
    ]


def _contexts(episode: MemoryEpisode, question: Question) -> list[str]:
    memory = episode.memory_after(question.ask_after)
    return [
        QAPipeline(RuleAnswerer(), budget=budget).context(memory, question.question).text
        for budget in CONTEXTS
    ]


def _holds_answer(text: str, question: Question) -> bool | None:
    if question.is_unanswerable:
        return None
    words = f" {normalized(text)} "
    return any(f" {normalized(answer)} " in words for answer in question.answers)


def _rate(instances: Sequence[Instance], policy: BaselinePolicy, budget: int) -> float:
    return fmean(answer_rate(_answers(instance, policy, budget)) for instance in instances)


def _answers(instance: Instance, policy: BaselinePolicy, budget: int) -> list[GradedAnswer]:
    pipeline = QAPipeline(RuleAnswerer(), budget=ContextBudget(tokens=budget))
    return pipeline.answer(run_baseline(instance, policy).memory, instance.questions)


def _steps(
    instances: Sequence[Instance], policy: BaselinePolicy
) -> tuple[list[StepScore], dict[str, float]]:
    steps: list[StepScore] = []
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for instance in instances:
        episode = run_baseline(instance, policy)
        answers = _answers(instance, policy, 256)
        verdicts = RuleContentJudge().judge(episode.steps).valid
        steps += score_steps(episode, verdicts, answers, Weights())
        for answer in answers:
            kinds[answer.question.qtype].append(answer.score)
    return steps, {kind: fmean(scores) for kind, scores in kinds.items()}


if __name__ == "__main__":
    main()
