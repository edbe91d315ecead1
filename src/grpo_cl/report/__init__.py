"""The HTML report of a run, made from the files of its run directory."""

from grpo_cl.report.page import write_report

__all__ = ["write_report"]
