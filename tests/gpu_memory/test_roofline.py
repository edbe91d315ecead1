"""FLOPs and bytes of benchmarks/roofline.py, worked out by hand for a tiny shape."""

import pytest

from gpu_memory import Case
from roofline import Device, Work, phase_cells, phases

LAYERS = 4 * (9312 + 2 * 4656 + 9216 + 3 * 24576 + 192)
"""Queries, keys and values with bias, output, MLP, norms."""
HEAD = 512 * 96
CASE = Case("dry", dtype="float32", prompt=2, reply=3, tasks=1, group=2, kl_coef=0.1)
VISIBLE = 4 * 4 * 96
"""FLOPs of attention for each pair of tokens: scores and values of 4 layers."""


def test_prefill_computes_each_prompt_once():
    work = phases(CASE)["prefill"]
    assert work.flops == 2 * LAYERS * 2 + 2 * HEAD + VISIBLE * (1 + 2)
    assert work.bytes == 4 * (LAYERS + HEAD)


def test_a_decoding_step_reads_the_weights_the_prompt_once_and_the_replies():
    work = phases(CASE)["decode"]
    # Two steps of two rows: they see 3 and 4 tokens, of which a row has 1 and 2 for itself.
    assert work.flops == 2 * 2 * 2 * (LAYERS + HEAD) + 2 * VISIBLE * (3 + 4)
    per_token = 2 * 4 * 48 * 4
    assert work.bytes == 2 * 4 * (LAYERS + HEAD) + per_token * (2 * 2 + 2 * (1 + 2))


def test_an_update_takes_three_forward_passes_and_with_lora_two():
    forward = 2 * LAYERS * 8 + 2 * HEAD * 6 + VISIBLE * 3 + 2 * VISIBLE * (3 + 4 + 5)
    assert phases(CASE)["reference"].flops == forward
    assert phases(CASE)["update"].flops == 3 * forward
    adapted = phases(CASE._replace(rank=4))["update"]
    adapters = CASE._replace(rank=4).workload.trainable_parameters
    assert adapted.flops == 2 * forward + 6 * 8 * adapters
    optimizer = 28 * CASE.workload.shape.parameters
    assert phases(CASE)["update"].bytes == 3 * 4 * (LAYERS + HEAD) + optimizer


@pytest.mark.parametrize(("flops", "moved", "seconds"), [(10, 4, 5), (10, 40, 20)])
def test_the_limit_is_that_of_compute_or_bandwidth(flops: int, moved: int, seconds: float):
    assert Work(flops, moved).limit_s(Device(flops=2, bandwidth=2)) == seconds


@pytest.mark.parametrize(
    ("seconds", "measured"), [(4.0, ("4", "50%")), (0.0, ("–", "–")), (-0.1, ("–", "–"))]
)
def test_a_phase_that_is_lost_in_noise_has_no_time(seconds: float, measured: tuple[str, str]):
    cells = phase_cells(Work(flops=4, bytes=0), seconds, Device(flops=2, bandwidth=2))
    assert cells == ("4e-09", "0", "2", *measured)
