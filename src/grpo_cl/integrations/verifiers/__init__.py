"""Integration with verifiers: the taskset and harness of the package ``grpo_cl_verifiers``."""
