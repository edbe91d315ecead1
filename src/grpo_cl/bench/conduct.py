"""A campaign from beginning to end: train what is missing, then say what came of it."""

from typing import NamedTuple

from grpo_cl.bench.campaign import Campaign
from grpo_cl.bench.folder import CampaignDir
from grpo_cl.bench.page import Told, page
from grpo_cl.bench.plan import make_plan
from grpo_cl.bench.results import Gathered, gather
from grpo_cl.bench.runner import Runner, Say
from grpo_cl.bench.summary import Summary, summarize
from grpo_cl.rundir import write_file, write_json

FORMAT = 1


class Conducted(NamedTuple):
    """How a campaign ended."""

    folder: CampaignDir
    gathered: Gathered
    summary: Summary

    @property
    def is_complete(self) -> bool:
        """Whether every run finished."""
        return all(run.error is None for run in self.gathered.runs)


def conduct(campaign: Campaign, *, say: Say) -> Conducted:
    """Train the runs of a campaign that are not finished, and write its results and its page."""
    plan = make_plan(campaign)
    folder = CampaignDir(campaign.out)
    with folder.held():
        folder.claim([*plan.trunks, *plan.runs])
        Runner(plan, folder, workers=campaign.workers, say=say).run()
        gathered = gather(campaign, plan, folder)
        summary = summarize(campaign, gathered)
        write_json(folder.results, _results(campaign, gathered, summary))
        write_json(folder.times, gathered.times)
        write_file(folder.report, [page(Told(campaign, plan, gathered, summary))])
    return Conducted(folder, gathered, summary)


def _results(campaign: Campaign, gathered: Gathered, summary: Summary) -> dict[str, object]:
    return {
        "format": FORMAT,
        # Where it ran and how many runs at once change no number.
        "campaign": campaign.model_dump(mode="json", exclude={"out", "workers"}),
        "methods": [method.model_dump(mode="json") for method in gathered.methods],
        "summary": summary.model_dump(mode="json"),
        "spent": gathered.spent.model_dump(mode="json"),
        "runs": [
            run.model_dump(mode="json", exclude={"r_matrix"})
            | {"r_matrix": run.r_matrix.to_json() if run.r_matrix else None}
            for run in gathered.runs
        ],
    }
