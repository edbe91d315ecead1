"""Campaigns: many runs that are compared, from one file to one page."""

from grpo_cl.bench.campaign import Campaign, read_campaign
from grpo_cl.bench.conduct import Conducted, conduct
from grpo_cl.bench.plan import Plan, estimate, make_plan

__all__ = [
    "Campaign",
    "Conducted",
    "Plan",
    "conduct",
    "estimate",
    "make_plan",
    "read_campaign",
]
