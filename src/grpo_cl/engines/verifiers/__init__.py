"""Episodes inside verifiers: a taskset, and the harness that plays it, of ``grpo_cl_verifiers``."""
