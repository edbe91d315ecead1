"""Memory of one phase of a training step: bytes by part at its peak."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpo_cl.gpu_memory.constants import GRAPH_WORKSPACE, WORKSPACE
from grpo_cl.gpu_memory.kv_cache import decoder_copy_bytes, retained_cache_bytes, uses_cuda_graphs
from grpo_cl.gpu_memory.workload import FLOAT32_BYTES, Workload

PARTS = (
    "weights",
    "float32 weights",
    "moments",
    "gradients",
    "reference",
    "activations",
    "logits",
    "sampler",
    "workspace",
)
"""Parts of memory, in the order of the printed table."""


@dataclass(frozen=True)
class Phase:
    """Bytes by part at the peak."""

    name: str
    parts: Mapping[str, int]

    @property
    def peak(self) -> int:
        """Sum of all parts."""
        return sum(self.parts.values())

    def with_parts(self, **sizes: int) -> "Phase":
        """The phase with these sizes added; underscores in a part's name stand for spaces."""
        parts = dict(self.parts)
        for name, size in sizes.items():
            part = name.replace("_", " ")
            parts[part] = parts.get(part, 0) + size
        return Phase(self.name, parts)


def highest_peak(candidates: Iterable[Phase]) -> Phase:
    """The candidate with the highest peak."""
    return max(candidates, key=lambda candidate: candidate.peak)


def resident_phase(workload: Workload, name: str) -> Phase:
    """Memory that is held in every phase: weights, optimizer state, reference, KV cache."""
    shape, item = workload.shape, workload.dtype_bytes
    trainable = workload.trainable_parameters // workload.shards
    base = item * shape.parameters
    adapters = FLOAT32_BYTES * workload.trainable_parameters if workload.has_lora else 0
    has_master_weights = item < FLOAT32_BYTES and not workload.has_lora
    has_reference_model = workload.config.kl_coef > 0 and not workload.has_lora
    graph_workspace = GRAPH_WORKSPACE if uses_cuda_graphs(workload) else 0
    parts = {
        "weights": (base + adapters) // workload.shards,
        "float32 weights": FLOAT32_BYTES * trainable if has_master_weights else 0,
        "moments": 2 * FLOAT32_BYTES * trainable,
        "reference": base // workload.shards if has_reference_model else 0,
        "sampler": retained_cache_bytes(workload) + decoder_copy_bytes(workload),
        "workspace": WORKSPACE + graph_workspace,
    }
    return Phase(name, parts)
