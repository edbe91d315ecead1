"""The baseline: fine-tune on one domain after another."""

from grpo_cl.algorithms.base import CLAlgorithm


class SequentialCL(CLAlgorithm):
    """Plain fine-tuning; the forgetting of other algorithms is compared with its forgetting."""

    shares_first_stage = True
