"""How well generated tickets predict τ²-bench's own: an n-gram model of each wording.

    python benchmarks/ticket_prose.py --count 400 1600

A trigram model over words (Witten-Bell back-off down to a uniform distribution over one vocabulary
for all models) is trained on N generated training tickets, plain or varied, and as an upper bound
on the tickets of τ²-bench's own train split; all are measured on its test split. Words with a digit
or an @ (ids, dates, amounts, addresses) count as one word. Lower bits per word and a larger share
of the trigrams of τ²'s tickets that occur in the training tickets mean prose closer to τ²'s.
"""

import argparse
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_cl.config import TaskWording
from grpo_cl.envs import load_domain
from grpo_cl.envs.tau2 import Tau2Domain
from grpo_cl.users.scripted.ticket import ticket

DOMAINS = ("airline", "retail", "telecom")
ORDER = 3
START = ("<s>",) * (ORDER - 1)
_TOKEN = re.compile(r"\S*[\d@]\S*|[a-z]+(?:['’-][a-z]+)*|[^\w\s]")
_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n+")


class Prose(NamedTuple):
    """How close the prose of training tickets is to that of the measured tickets."""

    bits_per_word: float
    trigrams_seen: float
    sentences: int
    """Distinct sentences of the training tickets, with ids, dates and amounts as one word."""
    words: int
    """Distinct words of the training tickets."""


def tokens(text: str) -> list[str]:
    """Lower-case words and punctuation; a word with a digit or an @ is ``<value>``."""
    found = _TOKEN.findall(text.lower())
    return ["<value>" if re.search(r"[\d@]", word) else word for word in found] + ["</s>"]


class NgramModel:
    """Witten-Bell smoothed n-gram model over a vocabulary of a given size."""

    def __init__(self, texts: Sequence[str], vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for text in texts:
            for context, word in contexts(text):
                for start in range(len(context) + 1):
                    self._counts[context[start:]][word] += 1

    def probability(self, context: tuple[str, ...], word: str) -> float:
        """The probability of a word, which backs off to shorter contexts."""
        shorter = self.probability(context[1:], word) if context else 1 / self._vocabulary_size
        seen = self._counts.get(context)
        if not seen:
            return shorter
        return (seen[word] + len(seen) * shorter) / (seen.total() + len(seen))

    def has(self, context: tuple[str, ...], word: str) -> bool:
        """Whether the n-gram occurs in the training texts."""
        return word in self._counts.get(context, ())


def contexts(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The words of a text, each with the words before it."""
    words = (*START, *tokens(text))
    for index in range(len(START), len(words)):
        yield words[index - len(START) : index], words[index]


def measure(training: Sequence[str], measured: Sequence[str], vocabulary_size: int) -> Prose:
    """The prose of ``training`` against that of ``measured``."""
    model = NgramModel(training, vocabulary_size)
    grams = [gram for text in measured for gram in contexts(text)]
    bits = -sum(math.log2(model.probability(*gram)) for gram in grams)
    distinct = set(grams)
    sentences = {tuple(tokens(part)) for text in training for part in _SENTENCE.split(text) if part}
    return Prose(
        bits / len(grams),
        sum(model.has(*gram) for gram in distinct) / len(distinct),
        len(sentences),
        len({word for text in training for word in tokens(text)}),
    )


def generated_tickets(domain: Tau2Domain, wording: TaskWording, count: int, seed: int) -> list[str]:
    """The tickets of generated training tasks."""
    return [ticket(task) for task in domain.worded(wording).generate(seed=seed, count=count)]


def compare(domain: Tau2Domain, counts: Sequence[int], seed: int) -> Iterator[tuple[str, Prose]]:
    """A row for each kind of training tickets; all are measured on the same tickets."""
    own = [ticket(task) for task in domain.tasks("train")]
    measured = [ticket(task) for task in domain.tasks("test")]
    wordings: tuple[TaskWording, ...] = ("plain", "varied")
    drawn = {wording: generated_tickets(domain, wording, max(counts), seed) for wording in wordings}
    everything = [*own, *measured, *drawn["plain"], *drawn["varied"]]
    vocabulary_size = len({word for text in everything for word in tokens(text)})
    for wording in wordings:
        for count in counts:
            row = measure(drawn[wording][:count], measured, vocabulary_size)
            yield f"{wording}, {count} tickets", row
    yield f"τ²'s train split, {len(own)} tickets", measure(own, measured, vocabulary_size)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--domain", nargs="+", default=list(DOMAINS))
    parser.add_argument("--count", nargs="+", type=int, default=[400, 1600])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tau2_data_dir", type=Path, default=None)
    options = parser.parse_args()
    print("| domain | training tickets | bits per word | trigrams seen | sentences | words |")
    print("|---|---|---|---|---|---|")
    for name in options.domain:
        domain = load_domain(name, options.tau2_data_dir)
        assert isinstance(domain, Tau2Domain)
        for label, row in compare(domain, options.count, options.seed):
            print(
                f"| {name} | {label} | {row.bits_per_word:.2f} | {row.trigrams_seen:.0%} "
                f"| {row.sentences} | {row.words} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
