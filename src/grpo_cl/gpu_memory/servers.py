"""Plans a run with rollout servers: half of the GPUs train, the other half sample.

The weights stay sharded on the GPUs that train, and are divided among the GPUs of a server by
tensor parallelism: neither needs a GPU that holds all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from grpo_cl.gpu_memory.estimate import MemoryEstimate, changed, estimate, find_fit
from grpo_cl.gpu_memory.shape import ModelShape
from grpo_cl.gpu_memory.workload import Workload

GPU_SHARE = 0.9
"""Share of a GPU's memory that vLLM uses by default."""
VLLM_OVERHEAD = 4 * 2**30
"""Assumed bytes of that share for activations, workspace and CUDA graphs."""
MAX_WEIGHT_SHARE = 0.5
"""Most of a GPU's memory that the weights take; the KV cache needs the rest."""
PORT = 8000
"""Of the first server."""
MAX_GPUS = 1024


@dataclass(frozen=True)
class ServerPlan:
    """Settings of a run whose episodes are sampled by vLLM servers on the same machines."""

    settings: Mapping[str, Any]
    """Changed settings by name, without the servers' addresses."""
    training: MemoryEstimate
    """On each GPU that trains."""
    server_gpus: int
    tensor_parallel: int
    """GPUs of one server."""

    @property
    def workload(self) -> Workload:
        """The workload of the GPUs that train."""
        return self.training.workload

    @property
    def servers(self) -> int:
        """Number of servers."""
        return self.server_gpus // self.tensor_parallel

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers on the machine that trains."""
        return [f"http://localhost:{PORT + number}" for number in range(self.servers)]

    @property
    def weights(self) -> int:
        """Bytes of weights on each GPU of a server."""
        workload = self.workload
        return workload.dtype_bytes * workload.shape.parameters // self.tensor_parallel

    @property
    def cached_tokens(self) -> int:
        """Tokens that the KV caches of all servers hold."""
        workload, shape = self.workload, self.workload.shape
        free = round(GPU_SHARE * workload.memory) - VLLM_OVERHEAD - self.weights
        per_token = 2 * shape.num_hidden_layers * workload.dtype_bytes * shape.key_width
        return self.server_gpus * free // per_token

    @property
    def cached_episodes(self) -> int:
        """Episodes of full length that the servers sample at once; a shared prompt counts again."""
        return self.cached_tokens // self.workload.length


def plan_servers(before: MemoryEstimate) -> ServerPlan | None:
    """A plan for the GPUs of a run that does not fit otherwise; None if they are too few."""
    workload = before.workload
    server_gpus = workload.gpus // 2
    degree = next((n for n in tensor_parallel_degrees(workload, server_gpus)), None)
    if degree is None or workload.config.sampling.engine == "server":
        return None
    settings: dict[str, Any] = {"sampling.engine": "server"}
    if workload.gpus - server_gpus > 1:
        settings["sharding"] = "fsdp"
    accumulation = workload.config.gradient_accumulation_steps
    settings["gradient_accumulation_steps"] = 2 * accumulation  # the same tasks on half the GPUs
    halved = changed(replace(workload, gpus=workload.gpus - server_gpus), settings)
    needed = _needed_changes(estimate(halved))
    if needed is None:
        return None
    training = estimate(changed(halved, needed))
    return ServerPlan(settings | needed, training, server_gpus, degree)


def tensor_parallel_degrees(workload: Workload, gpus: int) -> Iterator[int]:
    """GPUs per server that leave enough memory for the KV cache, fewest first."""
    weights = workload.dtype_bytes * workload.shape.parameters
    for degree in _divisors_of_heads(workload.shape):
        if gpus and gpus % degree == 0 and weights / degree <= MAX_WEIGHT_SHARE * workload.memory:
            yield degree


def full_training(workload: Workload, gpus: int) -> MemoryEstimate:
    """Training of all weights on ``gpus`` with servers on others, by changes that keep results."""
    settings = {"sampling.engine": "server", "sharding": "fsdp", "lora.r": 0}
    current = estimate(changed(replace(workload, gpus=gpus), settings))
    for change in find_fit(current):
        if change.keeps_results:
            current = estimate(changed(current.workload, change.values))
    return current


def fewest_gpus_of_full_training(workload: Workload) -> int | None:
    """GPUs that suffice, doubled from those of the workload; None if more do not help."""
    gpus = max(2, workload.gpus)
    while gpus <= MAX_GPUS:
        if full_training(workload, gpus).fits:
            return gpus
        gpus *= 2
    return None


def _needed_changes(start: MemoryEstimate) -> dict[str, Any] | None:
    """Changes of ``find_fit`` without those that the others make unnecessary."""
    applied = find_fit(start)
    if applied and not applied[-1].after.fits:
        return None
    needed = [change.values for change in applied]
    for values in list(needed):
        others = [other for other in needed if other is not values]
        if estimate(changed(start.workload, _merged(others))).fits:
            needed = others
    return _merged(needed)


def _merged(changes: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for values in changes for name, value in values.items()}


def _divisors_of_heads(shape: ModelShape) -> Iterator[int]:
    degree = 1
    while shape.num_key_value_heads % degree == 0 and shape.num_attention_heads % degree == 0:
        yield degree
        degree *= 2
