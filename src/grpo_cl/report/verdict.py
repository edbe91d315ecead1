"""What a run learned and what it lost, in one sentence that follows from confidence intervals."""

from collections.abc import Mapping, Sequence
from enum import Enum
from statistics import fmean
from typing import Any, NamedTuple

from grpo_cl.metrics.continual import MIN_LEARNED
from grpo_cl.metrics.diagnostics import is_flat
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix
from grpo_cl.metrics.statistics import Interval
from grpo_cl.report.intervals import change_interval, is_beyond_noise, mean_interval

SOLVED = 0.95
"""A domain whose untrained score is above this cannot be seen to be learned."""
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Learning(Enum):
    """What a domain's own stage did to its score."""

    LEARNED = "learned"
    NO_GAIN = "no gain beyond noise"
    WORSE = "worse"
    SOLVED_BEFORE = "solved before training"
    NO_GRADIENT = "could not be learned: no step had a gradient"
    UNKNOWN = "noise unknown"


class Keeping(Enum):
    """What later stages did to a domain's score."""

    KEPT = "kept"
    LOST = "lost"
    WITHIN_NOISE = "change within noise"
    IMPROVED = "improved"
    UNKNOWN = "noise unknown"
    NOTHING_TO_LOSE = "nothing to lose"
    LAST = "learned last"


class DomainVerdict(NamedTuple):
    """One domain: its scores, their changes, and what they mean."""

    domain: str
    untrained: Interval | None
    learned: Interval | None
    last: Interval | None
    gain: Interval | None
    """From the untrained policy to the end of the domain's own stage."""
    change: Interval | None
    """Since then; None for the domain learned last."""
    learning: Learning
    keeping: Keeping
    loss: float
    """The change as a share of the score just after the domain was learned; positive if lost."""


class Verdict(NamedTuple):
    """The domains trained so far, and a sentence about them."""

    sentence: str
    domains: list[DomainVerdict]


def verdict(
    runs: Sequence[RMatrix], metrics: Sequence[Mapping[str, Sequence[Any]]] = ()
) -> Verdict:
    """The verdict on runs that differ only in their seeds; ``metrics`` are those of the runs."""
    order = runs[0].domains if runs else ()
    trained = min((len(run.scores()) - 1 for run in runs), default=0)
    if trained < 1:
        return Verdict("No domain was trained and evaluated yet.", [])
    domains = [
        _judge(runs, domain, stage, trained, metrics)
        for stage, domain in enumerate(order[:trained])
    ]
    clauses = [_learning_clause(domains), _keeping_clause(domains[:-1])]
    sentence = "; ".join(clause for clause in clauses if clause)
    if trained < len(order):
        return Verdict(f"After {trained} of {len(order)} domains: {sentence}.", domains)
    return Verdict(f"{sentence[0].upper()}{sentence[1:]}.", domains)


def listed(names: Sequence[str]) -> str:
    """The names as an enumeration: ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _judge(
    runs: Sequence[RMatrix],
    domain: str,
    stage: int,
    trained: int,
    metrics: Sequence[Mapping[str, Sequence[Any]]],
) -> DomainVerdict:
    end = runs[0].domains[trained - 1]
    base, learned, last = (_cells(runs, after, domain) for after in (BASE, domain, end))
    gain = change_interval(base, learned) if base and learned else None
    is_last = stage == trained - 1
    change = change_interval(learned, last) if learned and last and not is_last else None
    has_gradient = _has_gradient(stage, metrics)
    keeping = Keeping.LAST if is_last else _keeping(learned, last, change)
    return DomainVerdict(
        domain=domain,
        untrained=mean_interval(base),
        learned=mean_interval(learned),
        last=mean_interval(last),
        gain=gain,
        change=change,
        learning=_learning(base, gain, has_gradient=has_gradient),
        keeping=keeping,
        loss=_loss(learned, last) if keeping is not Keeping.NOTHING_TO_LOSE else 0.0,
    )


def _cells(runs: Sequence[RMatrix], after: str, domain: str) -> list[Cell]:
    """The cell of every run; empty if one is missing."""
    cells = [cell for run in runs if (cell := run.cell(after, domain))]
    return cells if len(cells) == len(runs) else []


def _has_gradient(stage: int, metrics: Sequence[Mapping[str, Sequence[Any]]]) -> bool:
    records = [record for series in metrics for record in series.get(f"task_{stage}/train", ())]
    return not records or not all(map(is_flat, records))


def _learning(base: Sequence[Cell], gain: Interval | None, *, has_gradient: bool) -> Learning:
    if base and fmean(cell.mean for cell in base) > SOLVED:
        return Learning.SOLVED_BEFORE
    if not has_gradient:
        return Learning.NO_GRADIENT
    if gain is None:
        return Learning.UNKNOWN
    if not is_beyond_noise(gain):
        return Learning.NO_GAIN
    return Learning.LEARNED if gain.estimate > 0 else Learning.WORSE


def _keeping(learned: Sequence[Cell], last: Sequence[Cell], change: Interval | None) -> Keeping:
    if not learned or not last:
        return Keeping.UNKNOWN
    if fmean(cell.mean for cell in learned) <= MIN_LEARNED:
        return Keeping.NOTHING_TO_LOSE
    if change is None:
        return Keeping.UNKNOWN
    if is_beyond_noise(change):
        return Keeping.IMPROVED if change.estimate > 0 else Keeping.LOST
    return Keeping.WITHIN_NOISE if change.estimate else Keeping.KEPT


def _loss(learned: Sequence[Cell], last: Sequence[Cell]) -> float:
    before = fmean(cell.mean for cell in learned) if learned else 0.0
    return (before - fmean(cell.mean for cell in last)) / before if before and last else 0.0


def _learning_clause(domains: Sequence[DomainVerdict]) -> str:
    of = {kind: [d.domain for d in domains if d.learning is kind] for kind in Learning}
    learned = of[Learning.LEARNED]
    clauses = [f"learned {_all(learned, len(domains))}"] if learned else []
    words = {
        Learning.NO_GRADIENT: "could not learn {}: no training step had a gradient",
        Learning.NO_GAIN: "no gain on {} beyond noise",
        Learning.WORSE: "training on {} lowered its own score",
        Learning.SOLVED_BEFORE: "{} was solved before training",
        Learning.UNKNOWN: "whether {} was learned is unknown: its score has no interval",
    }
    clauses += [text.format(listed(of[kind])) for kind, text in words.items() if of[kind]]
    is_nothing = of[Learning.NO_GAIN] + of[Learning.WORSE] + of[Learning.NO_GRADIENT]
    if len(is_nothing) == len(domains):
        return f"learned nothing: {', '.join(clauses)}"
    return ", ".join(clauses)


def _all(learned: Sequence[str], count: int) -> str:
    if len(learned) < count or count == 1:
        return listed(learned)
    if count == 2:
        return "both domains"
    return f"all {_NUMBERS[count] if count < len(_NUMBERS) else count} domains"


def _keeping_clause(earlier: Sequence[DomainVerdict]) -> str:
    of = {kind: [d for d in earlier if d.keeping is kind] for kind in Keeping}
    lost = [_share(domain) for domain in of[Keeping.LOST]]
    noisy = [_share(domain) for domain in of[Keeping.WITHIN_NOISE] if domain.loss > 0]
    unknown = [domain.domain for domain in of[Keeping.UNKNOWN]]
    improved = [domain.domain for domain in of[Keeping.IMPROVED]]
    clauses = [f"lost {listed(lost)}"] if lost else []
    if noisy:
        clauses.append(
            f"{'' if lost else 'lost '}{listed(noisy)}{'' if lost else ','} within noise"
        )
    if improved:
        clauses.append(f"later training improved {listed(improved)}")
    if unknown:
        clauses.append(f"whether {listed(unknown)} was kept is unknown: its score has no interval")
    has_something = any(d.keeping is not Keeping.NOTHING_TO_LOSE for d in earlier)
    return ", ".join(clauses) or ("lost nothing" if has_something else "")


def _share(domain: DomainVerdict) -> str:
    percent = round(100 * domain.loss)
    return f"{percent} % of {domain.domain}" if percent else f"less than 1 % of {domain.domain}"
