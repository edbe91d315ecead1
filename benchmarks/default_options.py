"""How much each algorithm's default options hold: two domains in turn, every algorithm.

    python benchmarks/default_options.py toy       # 8 seeds in the toy domains, minutes
    python benchmarks/default_options.py tiny      # the embedded policy, airline then telecom

Prints the table of docs/algorithms.md, means over seeds: the success on the first domain after its
own stage and at the end, that on the second domain, forgetting, and how far the second stage moved
the weights (Euclidean distance). An interrupted measurement continues where it was.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_cl.algorithms import ALGORITHMS
from grpo_cl.campaigns import make_plan, run_campaign
from grpo_cl.campaigns.campaign import make_campaign
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.layout import RunDir

LORA = {"lora": {"r": 4, "alpha": 8}}
NEED_LORA = frozenset({"domain_lora", "olora"})
VARIANTS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("replay", {}, {"replay_ratio": 0.5}),
    ("trajectory_replay", {"max_drift": 5.0}, {}),
    ("clear", {"cloning": 0.1}, {}),
    ("kl_old", {"states": "current"}, {}),
    ("der", {"beta": 0.5}, {}),
    ("rapo", {"is_normalised": True}, {}),
    ("sequential", {}, LORA),
)
"""Options beside the defaults: algorithm, options, settings."""

TOY: dict[str, Any] = {
    "model_name_or_path": "tabular",
    "model_dtype": "float32",
    "temperature": 1.0,
    "max_new_tokens": 1,
    "num_samples_per_prompt": 8,
    "kl_coef": 0.2,
    "batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "num_steps_per_task": 16,
    "learning_rate": 0.1,
    "replay_buffer_size": 128,
    "task_order": ["toy_left", "toy_right"],
    "evaluation": {"trials": 8, "drift": True},
    "logging": {"trackers": [], "save_interval": 1000},
}
TINY: dict[str, Any] = {
    "model_name_or_path": "tiny",
    "task_order": ["airline", "telecom"],
    "batch_size_per_gpu": 2,
    "num_steps_per_task": 6,
    "evaluation": {"generated": 8, "trials": 2, "drift": True},
    "logging": {"trackers": [], "save_interval": 1000},
}
WORLDS = {"toy": (TOY, range(8)), "tiny": (TINY, range(1))}
HEAD = ("first, after its stage", "first, at the end", "second", "forgetting", "weights moved")


def main() -> None:
    """Train what is not trained yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/default_options"))
    arguments = parser.parse_args()
    base, seeds = WORLDS[arguments.world]
    campaign = make_campaign(
        {
            "name": f"default options, {arguments.world}",
            "out": arguments.out / arguments.world,
            "workers": arguments.workers,
            "seeds": list(seeds if arguments.seeds is None else range(arguments.seeds)),
            "base": base,
            "algorithms": entries(variants=arguments.world == "toy"),
        }
    )
    run_campaign(campaign, report=lambda line: print(line, flush=True))
    print(f"| | {' | '.join(HEAD)} |\n|{'---|' * (1 + len(HEAD))}")
    for entry in campaign.algorithms:
        roots = [job.config.log_dir for job in make_plan(campaign).runs if job.entry == entry]
        matrices = [RMatrix.load(RunDir(Path(root)).r_matrix) for root in roots]
        cells = " | ".join("–" if value is None else f"{value:.3f}" for value in row(matrices))
        print(f"| {entry.title} | {cells} |")


def entries(*, variants: bool) -> list[dict[str, Any]]:
    """Every algorithm with its defaults, and the variants."""
    listed: list[dict[str, Any]] = [
        {"name": name, "settings": LORA if name in NEED_LORA else {}} for name in ALGORITHMS
    ]
    for name, options, settings in VARIANTS if variants else ():
        changed = {**options, **({"lora": True} if "lora" in settings else settings)}
        label = f"{name}, {' '.join(f'{key} {value}' for key, value in changed.items())}"
        listed.append({"name": name, "label": label, "cl_options": options, "settings": settings})
    return listed


def row(matrices: Sequence[RMatrix]) -> list[float | None]:
    """The numbers of one line of the table."""
    first, second = matrices[0].domains
    scores = [matrix.scores() for matrix in matrices]
    learned, kept, new = (
        fmean(float(table[stage][column] or 0.0) for table in scores)
        for stage, column in ((1, 0), (2, 0), (2, 1))
    )
    cells = [matrix.cell(second, first) for matrix in matrices]
    distances = [cell.drift.distance_previous for cell in cells if cell and cell.drift]
    known = [distance for distance in distances if distance is not None]
    return [learned, kept, new, learned - kept, fmean(known) if known else None]


if __name__ == "__main__":
    main()
