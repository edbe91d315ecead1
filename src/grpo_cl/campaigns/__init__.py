"""Campaigns: many runs trained from one file and compared on one page."""

from grpo_cl.campaigns.campaign import Campaign, read_campaign
from grpo_cl.campaigns.plan import Plan, estimate, make_plan
from grpo_cl.campaigns.runner import FinishedCampaign, run_campaign

__all__ = [
    "Campaign",
    "FinishedCampaign",
    "Plan",
    "estimate",
    "make_plan",
    "read_campaign",
    "run_campaign",
]
