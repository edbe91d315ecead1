"""The baseline: fine-tune on one domain after another."""

from grpo_cl.algorithms.base import CLAlgorithm


class SequentialCL(CLAlgorithm):
    """Plain fine-tuning; what it forgets is what the others are measured against."""

    shares_first_stage = True
