"""The episodes behind the R-matrix: what the policy did in each evaluation, compressed.

A cell of the R-matrix has two files, written at once when it was evaluated: the episodes, and their
token ids. Both depend on the run's settings only, so a resumed run writes the same bytes.
"""

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cl.errors import CheckpointError, TaskDataError
from grpo_cl.rewards import ScoredTrajectory
from grpo_cl.runs.episodes import recorded_episode, self_contained_line
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import sync_folder, write_file
from grpo_cl.types import Reward, Task, TokenTrace, Trajectory, first_problem


class EvaluationEpisode(NamedTuple):
    """An evaluation episode of a run."""

    row: int
    """The row of the R-matrix: 0 before training, 1 after the first stage."""
    after: str
    """The domain of the stage that it follows, or ``base``."""
    trial: int
    """The number of the episode among those of its task, from 0."""
    trajectory: Trajectory
    """Without token ids: ``read_tokens`` has them."""
    reward: Reward

    @property
    def task(self) -> Task:
        """The task that was played."""
        return self.trajectory.task


def write_evaluation(
    run: RunDir, place: tuple[int, str, str], scored: Sequence[ScoredTrajectory], *, limit: int
) -> None:
    """Write at most ``limit`` episodes of one cell; ``place`` is its row, stage and domain.

    First trials come before second ones, so that as many tasks as possible are there, and the same
    ones in every row.
    """
    row, after, domain = place
    seen: Counter[str] = Counter()
    numbered: list[tuple[int, int, ScoredTrajectory]] = []
    for index, episode in enumerate(scored):
        task_id = episode.trajectory.task.id
        numbered.append((seen[task_id], index, episode))
        seen[task_id] += 1
    kept = sorted(sorted(numbered)[:limit], key=lambda entry: entry[1])
    if not kept:
        return
    header = {"row": row, "after": after}
    lines = [
        header | {"trial": trial} | self_contained_line(_without_tokens(trajectory), reward)
        for trial, _, (trajectory, reward) in kept
    ]
    traces = [trajectory.tokens for _, _, (trajectory, _) in kept]
    if any(traces):  # first: a reader that finds the episodes finds their tokens too
        _write(run.evaluation_tokens(row, domain), _token_lines(traces))
    _write(run.evaluation_episodes(row, domain), lines)


def remove_evaluations_after(run: RunDir, row: int) -> None:
    """Remove the episodes of later rows, which a resumed run writes again."""
    removed = run.evaluations_after(row)
    for path in removed:
        path.unlink()
    if removed:
        sync_folder(run.evaluations_dir)


def read_evaluations(run: RunDir) -> Iterator[EvaluationEpisode]:
    """All evaluation episodes that were kept, by row; also of a run that is being trained."""
    for path in run.evaluations_after(-1):
        if not path.name.endswith(".tokens.jsonl.gz"):
            yield from map(_episode, _read(path))


class EpisodeTokens(NamedTuple):
    """The token ids of an episode, as read and sampled."""

    ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]
    """The [start, end) of each reply in ``ids``."""


def read_tokens(run: RunDir, row: int, domain: str) -> list[EpisodeTokens]:
    """The token ids of a cell's episodes, in their order; empty if the policy has none."""
    path = run.evaluation_tokens(row, domain)
    tokens: list[EpisodeTokens] = []
    ids: tuple[int, ...] = ()
    for line in _read(path) if path.exists() else ():
        ids = (*ids[: line["shared"]], *line["ids"])
        tokens.append(EpisodeTokens(ids, tuple((start, end) for start, end in line["turns"])))
    return tokens


def _without_tokens(trajectory: Trajectory) -> Trajectory:
    return trajectory.model_copy(update={"tokens": None})


def _token_lines(traces: Sequence[TokenTrace | None]) -> list[dict[str, Any]]:
    """One line per episode; the ids that it shares with the one before are only counted.

    The prompts of a domain begin alike and are longer than the window of the compression.
    """
    lines: list[dict[str, Any]] = []
    before: tuple[int, ...] = ()
    for trace in traces:
        ids, turns = (trace.ids, trace.turns) if trace else ((), ())
        pairs = zip(before, ids, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        lines.append({"shared": shared, "ids": ids[shared:], "turns": turns})
        before = ids
    return lines


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    packed = io.BytesIO()
    # Neither the time nor the name of the file: equal episodes are equal bytes.
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as file:
        file.writelines(f"{encode(line)}\n".encode("ascii") for line in lines)
    write_file(path, [packed.getvalue()])


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        with gzip.open(path) as file:
            return [json.loads(line) for line in file]
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it to read the rest") from error


def _episode(line: Mapping[str, Any]) -> EvaluationEpisode:
    try:
        task = Task.model_validate(line["task"])
        read = recorded_episode(line, task)
        assert read.reward is not None
        return EvaluationEpisode(
            line["row"], line["after"], line["trial"], read.trajectory, read.reward
        )
    except (KeyError, ValueError) as error:
        raise TaskDataError(f"not an evaluation episode: {first_problem(error)}") from error
