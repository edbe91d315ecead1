"""``grpo-cl view``: read what the agent did, on a page, in the terminal or in Inspect's viewer."""

import argparse
import sys
from typing import TYPE_CHECKING

from grpo_cl.cli import values
from grpo_cl.cli.parser import Parser, command
from grpo_cl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_cl.cli.episode_text import Line
    from grpo_cl.report.viewer_data import Episodes
    from grpo_cl.rewards import ScoredTrajectory
    from grpo_cl.runs.evaluation_episodes import EvaluationEpisode


def add_options(parser: Parser) -> None:
    """Add the options of ``view``."""
    parser.add_argument("run_dir", type=values.input_dir, metavar="RUN", help="a run directory")
    parser.add(
        "--out", type=values.output_file, metavar="FILE", help="write the page as one HTML file"
    )
    parser.add(
        "--port", type=values.port, default=0, help="port on 127.0.0.1; default: 0, a free one"
    )
    parser.add("--no_browser", action="store_true", help="print the address only")
    parser.add("--task", type=values.text, metavar="ID", help="print an episode of this task")
    parser.add(
        "--domain", type=values.text, metavar="NAME", help="its domain, if several have a task ID"
    )
    parser.add(
        "--stage",
        type=values.count,
        nargs="+",
        metavar="N",
        help="after stage N, 0 before training; two print what differs; default: the last",
    )
    parser.add(
        "--trial", type=values.count, default=0, metavar="N", help="trial of the --task, from 0"
    )
    parser.add(
        "--step",
        type=values.positive,
        metavar="N",
        help="print the best and the worst episode of the N-th training step",
    )
    parser.add(
        "--inspect",
        type=values.output_dir,
        metavar="DIR",
        help="write logs for `inspect view --log-dir DIR`",
    )
    parser.set_defaults(run=command("view", "view"))


def view(arguments: argparse.Namespace) -> int:
    """Show the episodes of a run in the way that the options ask for."""
    _require_one_form(arguments)
    if arguments.step is not None:
        return _print_step(arguments)
    if arguments.task is not None:
        return _print_task(arguments)
    if arguments.inspect is not None:
        return _write_inspect(arguments)
    if arguments.out is not None:
        from grpo_cl.report.viewer import write_viewer

        print(write_viewer(arguments.run_dir, arguments.out))
        return 0
    return _serve(arguments)


def _require_one_form(arguments: argparse.Namespace) -> None:
    forms = {name: getattr(arguments, name) for name in ("out", "task", "step", "inspect")}
    given = [f"--{name} {value}" for name, value in forms.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other; give one of them")
    if arguments.task is None and (arguments.stage or arguments.domain):
        raise ConfigError("--stage and --domain choose an episode of --task ID; name the task")
    if arguments.stage and len(arguments.stage) > 2:
        raise ConfigError(f"--stage takes one or two stages, not {len(arguments.stage)}")


def _serve(arguments: argparse.Namespace) -> int:
    import webbrowser

    from grpo_cl.report.viewer import viewer_page
    from grpo_cl.report.viewer_server import ViewerServer

    viewer_page(arguments.run_dir)  # refused here, not in the browser
    with ViewerServer(lambda: viewer_page(arguments.run_dir), arguments.port) as server:
        print(f"episodes of {arguments.run_dir}: {server.url}  (Ctrl-C ends)", flush=True)
        if not arguments.no_browser and _has_desktop():
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _has_desktop() -> bool:
    """Whether a browser has a window: without one, Python would start a browser of the terminal."""
    import os

    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def _write_inspect(arguments: argparse.Namespace) -> int:
    from grpo_cl.integrations.inspect_logs import write_inspect_logs
    from grpo_cl.report.viewer_data import Episodes

    files = write_inspect_logs(Episodes(arguments.run_dir), arguments.inspect)
    print(f"{len(files)} logs written; `inspect view --log-dir {arguments.inspect}` opens them")
    return 0


def _print_task(arguments: argparse.Namespace) -> int:
    from grpo_cl.cli.episode_text import Line, episode_lines, print_lines
    from grpo_cl.report.viewer_data import Episodes

    episodes = Episodes(arguments.run_dir)
    played = _episodes_of(episodes, arguments)
    rows = sorted({one.row for one in played})
    chosen = [
        _episode_after(episodes, played, row, arguments.trial)
        for row in arguments.stage or rows[-1:]
    ]
    is_short = sys.stdout.isatty()
    for index, one in enumerate(chosen):
        title = f"{one.task.domain} {one.task.id}, {episodes.stage_label(one.row)}"
        if len(chosen) == 2:
            title = f"{'-+'[index]} {title}: reward {one.reward.value:g}"
            print_lines([Line(title, "title")], sys.stdout)
        else:
            lines = episode_lines(title, one.trajectory, one.reward, is_short=is_short)
            print_lines(lines, sys.stdout)
    if len(chosen) == 2:
        print_lines(_difference(chosen, is_short=is_short), sys.stdout)
    else:
        print_lines([Line(""), *_outcomes(episodes, played)], sys.stdout)
    return 0


def _episodes_of(
    episodes: "Episodes", arguments: argparse.Namespace
) -> "Sequence[EvaluationEpisode]":
    from difflib import get_close_matches

    task_id, domain = arguments.task, arguments.domain
    keys = [key for key in episodes.by_task if key[1] == task_id and domain in (None, key[0])]
    if len(keys) == 1:
        return episodes.by_task[keys[0]]
    if keys:
        domains = ", ".join(sorted(name for name, _ in keys))
        raise ConfigError(f"{domains} each have a task {task_id!r}; choose one with --domain")
    if domain is not None and domain not in episodes.domains:
        known = ", ".join(episodes.domains)
        raise ConfigError(f"the run has no domain {domain!r}; its domains: {known}")
    known = [name for _, name in episodes.by_task]
    close = get_close_matches(task_id, known, n=1)
    hint = f"did you mean {close[0]!r}? The" if close else "the"
    raise ConfigError(
        f"no episode of task {task_id!r} was kept; {hint} page of `grpo-cl view "
        f"{arguments.run_dir}` lists all tasks"
    )


def _episode_after(
    episodes: "Episodes", played: "Sequence[EvaluationEpisode]", row: int, trial: int
) -> "EvaluationEpisode":
    for one in played:
        if (one.row, one.trial) == (row, trial):
            return one
    rows = sorted({one.row for one in played})
    stages = ", ".join(f"{number} ({episodes.stage_label(number)})" for number in rows)
    raise ConfigError(
        f"no episode after stage {row}, trial {trial} was kept; --stage is one of {stages}, and "
        f"--trial at most {max(one.trial for one in played)}"
    )


def _outcomes(episodes: "Episodes", played: "Sequence[EvaluationEpisode]") -> "list[Line]":
    """One line per stage: how the task went."""
    from grpo_cl.cli.episode_text import Line, glyph

    lines = [Line("All stages:")]
    for row in sorted({one.row for one in played}):
        trials = [one for one in played if one.row == row]
        marks = " ".join(glyph(one.trajectory, one.reward) for one in trials)
        lines.append(Line(f"  {row} {episodes.stage_label(row)}: {marks}"))
    return lines


def _difference(chosen: "Sequence[EvaluationEpisode]", *, is_short: bool) -> "list[Line]":
    """The messages of two episodes, those of one of them marked with - or +."""
    from difflib import ndiff

    from grpo_cl.cli.episode_text import Line, conversation

    before, after = (
        [line.text for line in conversation(one.trajectory, is_short=is_short)] for one in chosen
    )
    styles = {"-": "missed", "+": "met"}
    marked = [line for line in ndiff(before, after) if not line.startswith("?")]
    return [Line(line, styles.get(line[0], "soft")) for line in marked]


def _print_step(arguments: argparse.Namespace) -> int:
    from grpo_cl.cli.episode_text import Line, episode_lines, print_lines

    episodes = _step_episodes(arguments)
    best = max(episodes, key=lambda one: one.reward.value)
    # On a tie, the worst is of the same task as the best: the two are easier to compare.
    group = best.trajectory.task.id
    worst = min(episodes, key=lambda one: (one.reward.value, one.trajectory.task.id != group))
    for name, (trajectory, reward) in (("best", best), ("worst", worst)):
        task = trajectory.task
        title = f"step {arguments.step}, {name} of {len(episodes)}: {task.domain} {task.id}"
        lines = episode_lines(title, trajectory, reward, is_short=sys.stdout.isatty())
        print_lines([*lines, Line("")], sys.stdout)
    return 0


def _step_episodes(arguments: argparse.Namespace) -> "list[ScoredTrajectory]":
    """The training episodes of a step, counted from 1 as in the names of checkpoints."""
    from grpo_cl.envs.tasks import TaskDataLoader
    from grpo_cl.rewards import ScoredTrajectory
    from grpo_cl.runs.episodes import recorded_episode
    from grpo_cl.runs.layout import RunDir
    from grpo_cl.runs.settings import read_settings
    from grpo_cl.storage.journal import read_journal

    run = RunDir(arguments.run_dir)
    lines, last = [], 0
    for line in read_journal(run.trajectories_journal):
        last = line["step"] + 1
        if last > arguments.step:
            break
        if last == arguments.step:
            lines.append(line)
    if not lines:
        raise ConfigError(
            f"{run.trajectories_journal} has no episode of step {arguments.step}; its last step is "
            f"{last}"
        )
    domains = TaskDataLoader(read_settings(run.config)).domains
    found: list[ScoredTrajectory] = []
    for line in lines:
        read = recorded_episode(line, domains[line["domain"]].task(line["task_id"]))
        if read.reward is not None:
            found.append(ScoredTrajectory(read.trajectory, read.reward))
    return found
