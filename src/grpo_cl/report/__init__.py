"""A run as one page, made from the files of its directory alone."""

from grpo_cl.report.page import write_report

__all__ = ["write_report"]
