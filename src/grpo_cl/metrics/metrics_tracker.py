"""The metrics of a run: kept in memory, written to ``metrics.json`` and its journal.

``experiment_trackers`` has the clients of TensorBoard, wandb and trackio, to which the numbers are
forwarded.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.experiment_trackers import ExperimentTracker, TableTracker
from grpo_cl.metrics.names import (
    evaluation_names,
    numbers,
    step_names,
    time_names,
    transfer_names,
)
from grpo_cl.metrics.tables import Table
from grpo_cl.runs.layout import SERIES, RunDir
from grpo_cl.runs.result_files import require_unchanged, write_result, written_again
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import read_json
from grpo_cl.storage.journal import Journal

TRANSFER = "transfer"
BUFFER = "buffer"


class MetricsTracker:
    """Stores every logged record, and forwards it to a journal and to experiment trackers.

    ``metrics`` maps ``task_0/train``, ``task_0/eval``, …, ``transfer`` and ``buffer`` to lists of
    records. A subclass may log series of its own with ``append``, and is given to the trainer as
    ``GRPOTrainer(config, metrics=…)``.
    """

    def __init__(
        self,
        config: GRPOConfig,
        *,
        journal: Journal | None = None,
        trackers: Sequence[ExperimentTracker] = (),
    ) -> None:
        self.config = config
        self._journal = journal
        self.metrics: defaultdict[str, list[Any]] = defaultdict(list)
        self._trackers = trackers

    def forward_to(
        self, *, journal: Journal | None, trackers: Sequence[ExperimentTracker] = ()
    ) -> None:
        """Forward what is logged from now on; the trainer calls it when its run begins."""
        self._journal = journal
        self._trackers = trackers

    def log_step(self, task_idx: int, step: int, values: Mapping[str, Any]) -> None:
        """Record one training step of the stage ``task_idx``."""
        self.append(f"task_{task_idx}/train", {"task_idx": task_idx, "step": step, **values})
        self._publish(task_idx, step, step_names(values))

    def log_evaluation(
        self, task_idx: int, step: int, domain: str, values: Mapping[str, Any]
    ) -> None:
        """Record the evaluation of one domain in the stage ``task_idx``.

        A value ``after`` names the row of the R-matrix that the evaluation belongs to.
        """
        place = {"task_idx": task_idx, "step": step, "domain": domain}
        self.append(f"task_{task_idx}/eval", {**place, **values})
        self._publish(task_idx, step, evaluation_names(domain, values))

    def log_transfer(
        self, task_idx: int, values: Mapping[str, Any], *, step: int | None = None
    ) -> None:
        """Record the continual-learning scores after the stage ``task_idx``, or at its ``step``."""
        self.append(TRANSFER, {"task_idx": task_idx, **values})
        place = self.config.num_steps_per_task if step is None else step
        self._publish(task_idx, place, transfer_names(values))

    def log_times(self, task_idx: int, step: int, values: Mapping[str, float]) -> None:
        """Forward the wall times of a training step to trackers.

        They are not recorded: two runs of one seed have equal records.
        """
        self._publish(task_idx, step, time_names(values))

    def log_tables(self, task_idx: int, step: int, tables: Mapping[str, Table]) -> None:
        """Forward tables to the trackers that show some; they are not recorded."""
        for tracker in self._trackers:
            if isinstance(tracker, TableTracker):
                for name, table in tables.items():
                    tracker.log_table(name, table, self._position(task_idx, step))

    def log_buffer(self, task_idx: int, step: int, statistics: Mapping[str, Any]) -> None:
        """Record the statistics of the trajectory buffer by domain."""
        self.append(BUFFER, {"task_idx": task_idx, "step": step, "domains": dict(statistics)})

    def get_summary(self) -> dict[str, Any]:
        """The last scores, the last evaluation of each domain, and the rewards of each stage."""
        transfer = self.metrics.get(TRANSFER, [])
        scores = numbers(transfer[-1]) if transfer else {}
        return {**scores, "evaluation": self._last_evaluations(), "stages": self._stages()}

    def plot_learning_curves(self, path: Path | str) -> list[Path]:
        """Plot rewards and evaluations to a .png or .svg file, or both formats into a directory."""
        from grpo_cl.metrics import plots  # noqa: PLC0415  # matplotlib takes a second to import

        figure = plots.learning_curves(self.metrics, self.config.task_order)
        return plots.save(figure, Path(path), name="learning_curves")

    def save(self, path: Path | str) -> Path:
        """Write ``metrics.json`` into a run directory, or a file whose name ends in ``.json``."""
        file = _metrics_file(Path(path))
        write_result(file, _json_chunks(self.metrics))
        return file

    def load(self, path: Path | str) -> Self:
        """Load the metrics of a ``metrics.json`` or of a run directory, finished or not."""
        return self.from_json(read_metrics(Path(path)))

    def to_json(self) -> dict[str, list[Any]]:
        """All records logged so far."""
        return {name: list(records) for name, records in self.metrics.items()}

    def from_json(self, state: Mapping[str, Any]) -> Self:
        """Load the result of ``to_json``; nothing is forwarded to experiment trackers."""
        if not isinstance(state, dict) or not all(isinstance(v, list) for v in state.values()):
            raise ConfigError(
                "metrics must be a JSON object of lists, as MetricsTracker.save writes them"
            )
        self.metrics = defaultdict(list, {name: list(rows) for name, rows in state.items()})
        return self

    def append(self, series: str, record: Mapping[str, Any]) -> None:
        """Add a record to a series, in memory and in the journal from which a run is resumed."""
        self.metrics[series].append(dict(record))
        if self._journal is not None:
            self._journal.append({SERIES: series, **record})

    def _publish(self, task_idx: int, step: int, values: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            tracker.log(values, self._position(task_idx, step))

    def _position(self, task_idx: int, step: int) -> int:
        """The number of updates since the start of the run."""
        return task_idx * self.config.num_steps_per_task + step

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
    """The metrics in a file or a run directory; of an unfinished run, from its journal."""
    file = _metrics_file(path)
    if not file.exists() and RunDir(path).metrics_journal.exists():
        return RunDir(path).read_metrics()
    if not file.exists():
        raise ConfigError(f"no metrics at {file}; give a run directory or its metrics.json")
    require_unchanged(file, written_again(file))
    return read_json(file)


def _metrics_file(path: Path) -> Path:
    return path if path.suffix == ".json" else RunDir(path).metrics


def _json_chunks(metrics: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """JSON with one record per line, for readable diffs."""
    for number, (name, records) in enumerate(metrics.items()):
        yield f"{',' if number else '{'}\n{encode(name)}: [\n  "
        yield ",\n  ".join(encode(record) for record in records)
        yield "\n]"
    yield "\n}\n" if metrics else "{}\n"
