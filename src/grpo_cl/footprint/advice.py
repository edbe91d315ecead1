"""What to change in a run that a GPU has no room for."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from grpo_cl.footprint.cache import has_graphs
from grpo_cl.footprint.estimate import Estimate, estimate
from grpo_cl.footprint.plan import Plan

ADAPTER_RANK = 16
"""Of the adapters that are proposed."""
MOST_CHANGES = 12
"""Of one recipe; halvings count each."""


class Change(NamedTuple):
    """A setting to change."""

    setting: str
    """As it is written on the command line."""
    saves: int
    """Bytes a GPU needs less."""
    keeps_results: bool
    """Whether the run learns the same, up to rounding."""
    after: Estimate


def changes(found: Estimate) -> list[Change]:
    """Single changes that help: first those that change no result, each by what they save."""
    made = [
        Change(setting, found.needed - after.needed, keeps_results, after)
        for setting, keeps_results, after in _candidates(found.plan)
    ]
    helping = [change for change in made if change.saves > 0]
    return sorted(helping, key=lambda change: (not change.keeps_results, -change.saves))


def recipe(found: Estimate) -> list[Change]:
    """Changes that together let a run fit; the last one's estimate tells whether they do."""
    made: list[Change] = []
    while not found.fits and len(made) < MOST_CHANGES:
        helping = changes(found)
        if not helping:
            break
        made.append(next((one for one in helping if one.after.fits), helping[0]))
        found = made[-1].after
    return made


def _candidates(plan: Plan) -> Iterator[tuple[str, bool, Estimate]]:
    yield from _free(plan)
    if plan.config.model_dtype == "float32":
        yield _changed(plan, "model_dtype", value="bfloat16", keeps_results=False)
    if not plan.has_adapters:
        if plan.config.kl_coef:
            yield _changed(plan, "kl_coef", value=0, keeps_results=False)
        yield _changed(plan, "lora.r", value=ADAPTER_RANK, keeps_results=False)


def _free(plan: Plan) -> Iterator[tuple[str, bool, Estimate]]:
    config, sampling = plan.config, plan.config.sampling
    if not config.gradient_checkpointing:
        yield _changed(plan, "gradient_checkpointing", value=True)
    tokens = config.optimizer.micro_batch_tokens
    if tokens > plan.length:
        yield _changed(plan, "optimizer.micro_batch_tokens", value=max(tokens // 2, plan.length))
    if has_graphs(plan):
        yield _changed(plan, "sampling.cuda_graphs", value=False)
    if sampling.engine == "vllm":
        yield _changed(plan, "sampling.release_cache", value=True)
    if sampling.engine == "transformers" and sampling.slots > 1:
        yield _changed(plan, "sampling.slots", value=sampling.slots // 2)
    if plan.gpus > 1:
        yield _changed(plan, "sharding", value="fsdp")


def _changed(
    plan: Plan, name: str, *, value: Any, keeps_results: bool = True
) -> tuple[str, bool, Estimate]:
    section, dot, field = name.partition(".")
    config = plan.config
    if dot:
        held = {"optimizer": config.optimizer, "sampling": config.sampling, "lora": config.lora}
        changed = held[section].model_copy(update={field: value})
        config = config.model_copy(update={section: changed})
    else:
        config = config.model_copy(update={name: value})
    words = [f"--{name}"] if value is True else [f"--{name}", str(value).lower()]
    return " ".join(words), keeps_results, estimate(replace(plan, config=config))
