"""Seconds, tokens and cost of a run's stages, from its journals."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from grpo_cl.metrics.names import numbers
from grpo_cl.report.run import Run

BEFORE = "before training"
"""The row of the evaluation of the untrained policy."""


class StageTotals(NamedTuple):
    """Sums over a stage; None where nothing was recorded."""

    label: str
    steps: int
    training_s: float | None
    """Seconds of training steps, those repeated after a resume included."""
    rollout_s: float | None
    """The part in which episodes were played and scored, each step once."""
    update_s: float | None
    """The part in which the policy was updated, each step once."""
    evaluation_s: float | None
    episodes: float | None
    """Episodes of training steps."""
    generated_tokens: float | None
    """Tokens sampled from the policy in training steps."""
    trained_tokens: float | None
    """Tokens that entered a loss."""

    @property
    def generated_per_s(self) -> float | None:
        """Tokens sampled per second of rollouts."""
        return _ratio(self.generated_tokens, self.rollout_s)

    @property
    def trained_per_s(self) -> float | None:
        """Tokens trained on per second of updates."""
        return _ratio(self.trained_tokens, self.update_s)

    def __add__(self, other: object) -> Self:
        assert isinstance(other, StageTotals)
        sums = [_add(mine, theirs) for mine, theirs in zip(self[2:], other[2:], strict=True)]
        return self._replace(
            steps=self.steps + other.steps, **dict(zip(self._fields[2:], sums, strict=True))
        )


def stage_totals(run: Run) -> list[StageTotals]:
    """One row before training and one for each stage; empty if nothing was trained or timed."""
    rows = [_before_training(run)]
    rows += [_stage(run, number, domain) for number, domain in enumerate(run.matrix.domains)]
    return [row for row in rows if row.steps or row.evaluation_s is not None]


def total(rows: Sequence[StageTotals]) -> StageTotals | None:
    """The sum of all rows; None if there is none."""
    whole = rows[0] if rows else None
    for row in rows[1:]:
        whole = whole + row if whole else row
    return whole._replace(label="all") if whole else None


def spending(run: Run) -> tuple[int, float] | None:
    """Tokens and cost of model APIs; None if none was called."""
    if not run.spending:
        return None
    tokens = sum(int(line["tokens"]) for line in run.spending)
    return tokens, sum(float(line["cost"]) for line in run.spending)


def duration(seconds: float) -> str:
    """Seconds in words, rounded to two units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _before_training(run: Run) -> StageTotals:
    evaluated = [record for record in run.times if _is_before(record)]
    spent = _sum(evaluated, "play_s")
    return StageTotals(BEFORE, 0, None, None, None, spent, None, None, None)


def _stage(run: Run, number: int, domain: str) -> StageTotals:
    steps = [numbers(record) for record in run.records(f"task_{number}/train")]
    times = [r for r in run.times if r.get("stage") == number and not _is_before(r)]
    trained = [record for record in times if record.get("kind") == "train"]
    evaluated = [record for record in times if record.get("kind") == "eval"]
    # Runs of other engines have their times among the metrics.
    timed: Sequence[Mapping[str, Any]] = trained or steps
    # A step that was repeated after a resume counts once where tokens are divided by seconds.
    once = list({record["step"]: record for record in trained}.values()) or steps
    return StageTotals(
        label=domain,
        steps=len(steps),
        training_s=_sum(timed, "step_s"),
        rollout_s=_sum(once, "rollout_s"),
        update_s=_sum(once, "update_s"),
        evaluation_s=_sum(evaluated, "play_s"),
        episodes=_sum(steps, "episodes"),
        generated_tokens=_sum(steps, "generated_tokens"),
        trained_tokens=_sum(steps, "tokens"),
    )


def _is_before(record: Mapping[str, Any]) -> bool:
    return record.get("kind") == "eval" and record.get("stage") == record.get("step") == 0


def _sum(records: Iterable[Mapping[str, Any]], name: str) -> float | None:
    known = [float(record[name]) for record in records if record.get(name) is not None]
    return sum(known) if known else None


def _ratio(amount: float | None, seconds: float | None) -> float | None:
    return amount / seconds if amount is not None and seconds else None


def _add(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
