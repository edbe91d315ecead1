"""Memory estimate of a run: all phases of a step, whether they fit, and what to change if not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from grpo_cl.gpu_memory.constants import CUDA_CONTEXT, FRAGMENTATION, GRAPH_POOL
from grpo_cl.gpu_memory.kv_cache import uses_cuda_graphs
from grpo_cl.gpu_memory.phase import Phase
from grpo_cl.gpu_memory.sampling import sample_phase
from grpo_cl.gpu_memory.training import score_phase, update_phase
from grpo_cl.gpu_memory.workload import Workload
from grpo_cl.types import Record

LORA_RANK = 16
"""Rank of the adapters that ``suggest_changes`` proposes."""
MAX_CHANGES = 12
"""Most changes of ``find_fit``; each halving of a setting counts as one."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of each phase on one GPU."""

    workload: Workload
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> int:
        """Bytes of tensors in the phase with the highest peak, as the allocator counts them."""
        return max(phase.peak for phase in self.phases)

    @property
    def needed(self) -> int:
        """Bytes a GPU must have: peak, fragmentation, CUDA context and graph pool."""
        graphs = GRAPH_POOL if uses_cuda_graphs(self.workload) else 0
        return round(self.peak * (1 + FRAGMENTATION)) + CUDA_CONTEXT + graphs

    @property
    def fits(self) -> bool:
        """Whether one GPU has enough memory."""
        return self.needed <= self.workload.memory


class Change(NamedTuple):
    """Changed settings and their effect."""

    values: Mapping[str, Any]
    """New values by the name of the setting."""
    saves: int
    """Bytes saved on each GPU."""
    keeps_results: bool
    """Whether training is the same, up to rounding."""
    after: MemoryEstimate

    @property
    def setting(self) -> str:
        """As on the command line."""
        return command_line(self.values)


def command_line(values: Mapping[str, Any]) -> str:
    """Settings as options of a command."""
    return " ".join(
        f"--{name}" if value is True else f"--{name} {str(value).lower()}"
        for name, value in values.items()
    )


def estimate(workload: Workload) -> MemoryEstimate:
    """The memory of a run, phase by phase."""
    phases = (sample_phase(workload), score_phase(workload), update_phase(workload))
    return MemoryEstimate(workload, tuple(phase for phase in phases if phase is not None))


def suggest_changes(before: MemoryEstimate) -> list[Change]:
    """Single changes that save memory: those that keep results first, then by bytes saved."""
    candidates = [
        Change(values, before.needed - after.needed, keeps_results, after)
        for values, keeps_results, after in _candidates(before.workload)
    ]
    useful = [change for change in candidates if change.saves > 0]
    return sorted(useful, key=lambda change: (not change.keeps_results, -change.saves))


def find_fit(before: MemoryEstimate) -> list[Change]:
    """Changes to apply one after the other until the run fits, or none saves memory."""
    applied: list[Change] = []
    current = before
    while not current.fits and len(applied) < MAX_CHANGES:
        useful = suggest_changes(current)
        if not useful:
            break
        applied.append(next((change for change in useful if change.after.fits), useful[0]))
        current = applied[-1].after
    return applied


def changed(workload: Workload, values: Mapping[str, Any]) -> Workload:
    """The workload with other settings, and replies that the context allows."""
    config = workload.config
    for name, value in values.items():
        section, dot, field = name.partition(".")
        if dot:
            sections: dict[str, Record] = {
                "optimizer": config.optimizer,
                "sampling": config.sampling,
                "lora": config.lora,
            }
            updated = sections[section].model_copy(update={field: value})
            config = config.model_copy(update={section: updated})
        else:
            config = config.model_copy(update={name: value})
    after = replace(workload, config=config)
    reply = min(workload.reply_tokens, after.context - workload.prompt_tokens)
    return replace(after, reply_tokens=reply)


_Candidate = tuple[Mapping[str, Any], bool, MemoryEstimate]


def _candidates(workload: Workload) -> Iterator[_Candidate]:
    yield from _candidates_with_same_results(workload)
    if workload.config.model_dtype == "float32":
        yield _changed(workload, {"model_dtype": "bfloat16"}, keeps_results=False)
    if not workload.has_lora:
        if workload.config.kl_coef:
            yield _changed(workload, {"kl_coef": 0}, keeps_results=False)
        yield _changed(workload, {"lora.r": LORA_RANK}, keeps_results=False)
    shorter = max(workload.context // 2, workload.prompt_tokens + workload.config.max_new_tokens)
    if shorter < workload.length:
        yield _changed(workload, {"sampling.max_context": shorter}, keeps_results=False)


def _candidates_with_same_results(workload: Workload) -> Iterator[_Candidate]:
    config, sampling = workload.config, workload.config.sampling
    if not config.gradient_checkpointing:
        yield _changed(workload, {"gradient_checkpointing": True})
    tokens = config.optimizer.micro_batch_tokens
    if tokens > workload.length:
        smaller = max(tokens // 2, workload.length)
        yield _changed(workload, {"optimizer.micro_batch_tokens": smaller})
    batch, accumulation = config.batch_size_per_gpu, config.gradient_accumulation_steps
    if batch % 2 == 0:
        halved = {"batch_size_per_gpu": batch // 2}
        yield _changed(workload, halved | {"gradient_accumulation_steps": 2 * accumulation})
    if uses_cuda_graphs(workload):
        yield _changed(workload, {"sampling.cuda_graphs": False})
    if sampling.engine == "vllm":
        yield _changed(workload, {"sampling.release_cache": True})
    if sampling.engine == "transformers" and workload.slots > 1:
        yield _changed(workload, {"sampling.slots": workload.slots // 2})
    if workload.gpus > 1:
        yield _changed(workload, {"sharding": "fsdp"})


def _changed(
    workload: Workload, values: Mapping[str, Any], *, keeps_results: bool = True
) -> _Candidate:
    return values, keeps_results, estimate(changed(workload, values))
