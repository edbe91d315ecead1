"""Results of a campaign's runs."""

from pathlib import Path

from bench_campaigns import toy_campaign, write_runs
from grpo_cl.campaigns.directory import CampaignDir
from grpo_cl.campaigns.plan import make_plan
from grpo_cl.campaigns.results import collect_results
from grpo_cl.runs.layout import RunDir

SCORES = {name: [[0.2, 0.2], [0.9, 0.3], [0.5, 0.9]] for name in ("sequential", "ewc")}


def test_a_run_with_tasks_of_another_release_is_left_out_with_the_reason(tmp_path: Path) -> None:
    campaign = toy_campaign(tmp_path)
    write_runs(campaign, SCORES)
    plan = make_plan(campaign)
    for number, job in enumerate(plan.runs):
        release = "toy 1" if number == 2 else "toy 2"
        RunDir(job.config.log_dir).write_environment(
            command=["grpo-cl"], task_releases={"toy_left": release}
        )
    runs = collect_results(campaign, plan, CampaignDir(tmp_path)).runs
    assert [run.r_matrix is None for run in runs] == [False, False, True, False]
    assert runs[2].error is not None
    assert "its toy_left tasks are those of 'toy 1' and not of 'toy 2'" in runs[2].error
