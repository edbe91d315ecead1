"""Small campaigns: of the toy domains, or written without training.

``python bench_campaigns.py OUT [WORKERS]`` runs the toy campaign as a process that can be killed.
"""

import sys
from pathlib import Path
from typing import Any

from grpo_cl.campaigns import Campaign, make_plan, run_campaign
from grpo_cl.campaigns.campaign import make_campaign
from grpo_cl.campaigns.directory import CampaignDir, Outcome
from grpo_cl.config import GRPOConfig
from grpo_cl.metrics.metrics_tracker import MetricsTracker
from grpo_cl.metrics.rmatrix import BASE, Cell, Drift, RMatrix
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.files import write_json
from grpo_cl.storage.journal import Journal

DOMAINS = ["toy_left", "toy_right", "toy_up"]
SETTINGS: dict[str, Any] = {
    "model_name_or_path": "tabular",
    "model_dtype": "float32",
    "temperature": 1.0,
    "max_new_tokens": 1,
    "num_samples_per_prompt": 4,
    "kl_coef": 0.2,
    "batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "num_steps_per_task": 3,
    "learning_rate": 0.1,
    "task_order": DOMAINS[:2],
    "tau2_data_dir": None,
    "evaluation": {"trials": 2, "drift": True},
    "logging": {"trackers": [], "save_interval": 1},
}


def toy_campaign(out: Path, **changes: Any) -> Campaign:
    """Sequential and EWC, two seeds, two domains of three steps."""
    fields: dict[str, Any] = {
        "name": "toy",
        "out": out,
        "base": SETTINGS,
        "algorithms": [{"name": "sequential"}, {"name": "ewc", "cl_options": {"strength": 0.5}}],
        "seeds": (0, 1),
    }
    return make_campaign(fields | changes)


def write_runs(campaign: Campaign, scores: dict[str, list[list[float]]]) -> None:
    """Write finished runs with these scores by label, plus 0.01 for each seed."""
    plan, directory = make_plan(campaign), CampaignDir(campaign.out)
    for job in (*plan.shared_stages, *plan.runs):
        label = job.entry.title if job.entry else next(iter(scores))
        _write_run(job.config.log_dir, job.config.task_order, scores[label], job.config.seed)
        directory.write_outcome(job, Outcome())


def _write_run(root: Path, order: tuple[str, ...], scores: list[list[float]], seed: int) -> None:
    run = RunDir(root)
    matrix = RMatrix(domains=order)
    journal = Journal(run.metrics_journal)
    metrics = MetricsTracker(GRPOConfig.model_validate(SETTINGS), journal=journal)
    counts = {"episodes": 10.0, "turns": 20.0, "tool_calls": 10.0, "generated_tokens": 50.0}
    for stage, (after, row) in enumerate(zip((BASE, *order), scores, strict=True)):
        for domain, score in zip(order, row, strict=True):
            value = score + seed / 100
            tasks = {f"{domain}-{n}": (round(4 * score), 4) for n in range(3)}
            components = {"DB": value, "tool_name": 1.0}
            drift = Drift(
                kl_base=2 * (0.9 - score),
                kl_previous=1 - score,
                distance_base=0.5,
                start_norm=10.0,
                tokens=12,
                is_sampled=True,
            )
            cell = Cell(mean=value, tasks=tasks, components=components, drift=drift)
            matrix = matrix.with_cell(after, domain, cell)
            values = {"reward_mean": value, "after": after, **counts}
            metrics.log_evaluation(max(0, stage - 1), min(3, 3 * stage), domain, values)
        if after != BASE:
            for step in range(3):
                numbers = {"reward_mean": 0.1 * step, "tokens": 7.0, **counts}
                metrics.log_step(stage - 1, step, numbers)
    journal.close()
    write_json(run.r_matrix, matrix.to_json())
    with Journal(run.times_journal) as times:
        times.append({"kind": "train", "stage": 0, "step": 0, "step_s": 2.5})


if __name__ == "__main__":
    workers = {"workers": sys.argv[2]} if len(sys.argv) > 2 else {}
    run_campaign(
        toy_campaign(Path(sys.argv[1]), **workers),
        report=lambda line: print(line, flush=True),  # noqa: T201
    )
