"""Put the page together and write it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_cl.report.drift import drift_section, stability_table
from grpo_cl.report.effort import buffer_section, effort_section
from grpo_cl.report.html import Html, join, note, number, section, table, tag, text, words
from grpo_cl.report.run import Run, read_run
from grpo_cl.report.scores import component_section, matrix_section, summary_section, task_section
from grpo_cl.report.style import CSS, POLICY
from grpo_cl.rundir import RunDir, encode, write_file

_SETTINGS = {
    "model_name_or_path": "policy",
    "cl_algorithm": "algorithm",
    "task_order": "order",
    "num_steps_per_task": "steps per domain",
    "num_samples_per_prompt": "episodes per task",
    "learning_rate": "learning rate",
    "kl_coef": "KL weight",
    "loss.kind": "loss",
    "rollout.user": "user",
    "tasks.generated": "generated tasks",
    "evaluation.trials": "plays per evaluated task",
    "seed": "seed",
}


def write_report(run_root: Path) -> Path:
    """Write ``report.html`` from the other files of a run directory; it needs nothing else."""
    run = read_run(run_root)
    file = RunDir(run_root).report
    write_file(file, [page(run)])
    return file


def page(run: Run) -> Html:
    """The whole document."""
    head = tag(
        "head",
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", f"grpo-cl: {run.name}"),
        tag("style", Html(CSS)),
    )
    body = tag(
        "body",
        _header(run),
        summary_section(run),
        matrix_section(run),
        _figures(run),
        drift_section(run),
        component_section(run),
        task_section(run),
        buffer_section(run),
        effort_section(run),
        _set_up(run),
        tag(
            "footer", "Made by grpo-cl from the files of the run directory; nothing else was read."
        ),
    )
    return join([Html("<!doctype html>\n"), tag("html", head, body, lang="en"), Html("\n")])


def _header(run: Run) -> Html:
    order = " → ".join(run.matrix.domains)
    about = [run.setting("model_name_or_path"), run.setting("cl_algorithm"), order]
    return tag(
        "header",
        tag("h1", run.name),
        tag("p", " · ".join(str(part) for part in about if part), class_="lead"),
        note(
            "Reward basis: ", _shown(run.setting("reward.basis")), ". Tasks: ", _releases(run), "."
        ),
    )


def _releases(run: Run) -> Html:
    releases = run.environment.get("task_releases") or {}
    named = [join([domain, ", ", _shown(releases.get(domain))]) for domain in run.matrix.domains]
    return Html("; ".join(named))


def _figures(run: Run) -> Html:
    from grpo_cl.metrics import plots  # noqa: PLC0415  # matplotlib takes a second to import

    curves = plots.inline_svg(plots.learning_curves(run.metrics, run.matrix.domains))
    bars = plots.inline_svg(plots.forgetting_bars(run.matrix))
    return section(
        "Learning and forgetting",
        _figure(curves, "Training reward by step, with evaluations of every domain"),
        stability_table(run),
        _figure(bars, "Change on each earlier domain since it was learned and since its best"),
    )


def _figure(svg: str, caption: str) -> Html:
    shown = tag("div", Html(svg), role="img", aria_label=caption)
    return tag("figure", shown, tag("figcaption", caption, class_="note"))


def _set_up(run: Run) -> Html:
    settings = [
        (label, words(_shown(run.setting(name)))) for name, label in _SETTINGS.items() if run.config
    ]
    return section(
        "Set-up",
        table(("setting", "value"), settings) if settings else note("config.json is missing."),
        tag("h3", "Tasks and rewards"),
        table(("domain", "release of the tasks", "reward is the product of"), _domains(run)),
        _environment(run.environment),
        tag("details", tag("summary", "config.json"), tag("pre", encode(run.config, indent=2))),
    )


def _domains(run: Run) -> list[tuple[object, ...]]:
    releases = run.environment.get("task_releases") or {}
    rows: list[tuple[object, ...]] = []
    for domain in run.matrix.domains:
        facts = run.matrix.facts.get(domain)
        basis = " × ".join(facts.basis) if facts and facts.basis else None
        cells = (words(_shown(value)) for value in (releases.get(domain), basis))
        rows.append((domain, *cells))
    return rows


def _environment(environment: Mapping[str, Any]) -> Html:
    if not environment:
        return note("environment.json is missing.")
    rows = [
        (name, words(_shown(environment.get(name))))
        for name in ("started", "command", "commit", "python", "platform", "versions")
    ]
    return tag("details", tag("summary", "Environment"), table(("what", "value"), rows))


def _shown(value: Any) -> Html:
    if value is None or value == "":
        return number(None)
    if isinstance(value, Mapping):
        return text(", ".join(f"{name} {entry}" for name, entry in value.items()))
    if isinstance(value, list | tuple):
        return text(" ".join(str(entry) for entry in value))
    return text(value)
