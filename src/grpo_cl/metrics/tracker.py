"""What happened in a run, as numbers in the order they came."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.names import evaluation_names, numbers, step_names, transfer_names
from grpo_cl.metrics.trackers import Tracker
from grpo_cl.rundir import SERIES, Journal, RunDir, encode, read_json, write_file

TRANSFER = "transfer"
BUFFER = "buffer"


class MetricsTracker:
    """Keeps every logged record, and passes it on to a journal and to experiment trackers.

    ``metrics`` maps ``task_0/train``, ``task_0/eval``, …, ``transfer`` and ``buffer`` to lists of
    records. A subclass may append to keys of its own; they are saved and loaded like the others.
    """

    def __init__(
        self,
        config: GRPOConfig,
        *,
        journal: Journal | None = None,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        self.config = config
        self._journal = journal
        self.metrics: defaultdict[str, list[Any]] = defaultdict(list)
        self._trackers = trackers

    def log_step(self, task_idx: int, step: int, values: Mapping[str, Any]) -> None:
        """Record one training step of the stage ``task_idx``."""
        self._append(f"task_{task_idx}/train", {"task_idx": task_idx, "step": step, **values})
        self._publish(task_idx, step, step_names(values))

    def log_evaluation(
        self, task_idx: int, step: int, domain: str, values: Mapping[str, Any]
    ) -> None:
        """Record one domain measured in the stage ``task_idx``.

        A value ``after`` names the row of the R-matrix that the measurement belongs to.
        """
        place = {"task_idx": task_idx, "step": step, "domain": domain}
        self._append(f"task_{task_idx}/eval", {**place, **values})
        self._publish(task_idx, step, evaluation_names(domain, values))

    def log_transfer(
        self, task_idx: int, values: Mapping[str, Any], *, step: int | None = None
    ) -> None:
        """Record the continual-learning scores after the stage ``task_idx``, or at its ``step``."""
        self._append(TRANSFER, {"task_idx": task_idx, **values})
        place = self.config.num_steps_per_task if step is None else step
        self._publish(task_idx, place, transfer_names(values))

    def log_buffer(self, task_idx: int, step: int, statistics: Mapping[str, Any]) -> None:
        """Record what the trajectory buffer holds of each domain."""
        self._append(BUFFER, {"task_idx": task_idx, "step": step, "domains": dict(statistics)})

    def get_summary(self) -> dict[str, Any]:
        """The last scores, the last measurement of each domain, and each stage in short."""
        transfer = self.metrics.get(TRANSFER, [])
        scores = numbers(transfer[-1]) if transfer else {}
        return {**scores, "evaluation": self._last_evaluations(), "stages": self._stages()}

    def plot_learning_curves(self, path: Path | str) -> list[Path]:
        """Draw rewards and evaluations to a .png or .svg file, or both formats into a folder."""
        from grpo_cl.metrics import plots  # noqa: PLC0415  # matplotlib takes a second to import

        figure = plots.learning_curves(self.metrics, self.config.task_order)
        return plots.save(figure, Path(path), name="learning_curves")

    def save(self, path: Path | str) -> Path:
        """Write ``metrics.json`` into a run directory, or to a file of any name in ``.json``."""
        file = _metrics_file(Path(path))
        write_file(file, _written(self.metrics))
        return file

    def load(self, path: Path | str) -> Self:
        """Take over what a ``metrics.json`` holds, or a run directory, finished or not."""
        return self.from_json(read_metrics(Path(path)))

    def to_json(self) -> dict[str, list[Any]]:
        """Everything logged so far."""
        return {name: list(records) for name, records in self.metrics.items()}

    def from_json(self, state: Mapping[str, Any]) -> Self:
        """Take over what ``to_json`` gave; experiment trackers are told nothing of it."""
        if not isinstance(state, dict) or not all(isinstance(v, list) for v in state.values()):
            raise ConfigError("metrics are an object of lists, as MetricsTracker.save writes them")
        self.metrics = defaultdict(list, {name: list(rows) for name, rows in state.items()})
        return self

    def _append(self, series: str, record: Mapping[str, Any]) -> None:
        self.metrics[series].append(dict(record))
        if self._journal is not None:
            self._journal.append({SERIES: series, **record})

    def _publish(self, task_idx: int, step: int, values: Mapping[str, float]) -> None:
        position = task_idx * self.config.num_steps_per_task + step
        for tracker in self._trackers:
            tracker.log(values, position)

    def _last_evaluations(self) -> dict[str, dict[str, float]]:
        records = [
            record
            for task_idx in range(len(self.config.task_order))
            for record in self.metrics.get(f"task_{task_idx}/eval", [])
        ]
        return {record["domain"]: numbers(record) for record in records}

    def _stages(self) -> list[dict[str, Any]]:
        stages: list[dict[str, Any]] = []
        for task_idx, domain in enumerate(self.config.task_order):
            records = self.metrics.get(f"task_{task_idx}/train", [])
            if records:
                rewards = [numbers(record).get("reward_mean") for record in records]
                known = [reward for reward in rewards if reward is not None]
                stages.append(
                    {
                        "domain": domain,
                        "steps": len(records),
                        "first_reward": rewards[0],
                        "last_reward": rewards[-1],
                        "best_reward": max(known, default=None),
                    }
                )
        return stages


def read_metrics(path: Path) -> dict[str, Any]:
    """The metrics in a file or a run directory; of a run that has not ended, from its journal."""
    file = _metrics_file(path)
    if not file.exists() and RunDir(path).metrics_journal.exists():
        return RunDir(path).read_metrics()
    if not file.exists():
        raise ConfigError(f"no metrics at {file}; give a run directory or its metrics.json")
    return read_json(file)


def _metrics_file(path: Path) -> Path:
    return path if path.suffix == ".json" else RunDir(path).metrics


def _written(metrics: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """JSON with one record per line, so that people and diffs can read it."""
    for number, (name, records) in enumerate(metrics.items()):
        yield f"{',' if number else '{'}\n{encode(name)}: [\n  "
        yield ",\n  ".join(encode(record) for record in records)
        yield "\n]"
    yield "\n}\n" if metrics else "{}\n"
