"""Evaluation episodes as logs of Inspect, which ``inspect view`` opens.

A cell of the R-matrix is one log, an episode one sample, and a trial Inspect's *epoch*.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_cl.errors import ConfigError
from grpo_cl.report.reward_parts import reward_parts, reward_reason
from grpo_cl.report.viewer_data import Episodes, instructions
from grpo_cl.runs.evaluation_episodes import EvaluationEpisode
from grpo_cl.runs.layout import file_name
from grpo_cl.types import Message, ToolCall
from grpo_cl.users.scripted.ticket import ticket

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage
    from inspect_ai.scorer import Score
    from inspect_ai.viewer import ViewerConfig

REWARD = "reward"
"""The name of the score that is the episode's reward; the others are its components."""


def write_inspect_logs(episodes: Episodes, folder: Path) -> list[Path]:
    """Write one ``.eval`` file per stage and domain."""
    try:
        from inspect_ai.log import write_eval_log  # noqa: PLC0415  # takes two seconds
    except ImportError:
        raise ConfigError(
            "Inspect's logs need inspect-ai, which is not installed; run `pip install inspect-ai`"
        ) from None
    cells: defaultdict[tuple[int, str], list[EvaluationEpisode]] = defaultdict(list)
    for one in episodes.all:
        cells[one.row, one.task.domain].append(one)
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for (row, domain), played in sorted(cells.items()):
        file = folder / file_name(f"{row}_{domain}", ".eval")
        write_eval_log(_log(episodes, row, domain, played), str(file), "eval")
        files.append(file)
    return files


def _log(
    episodes: Episodes, row: int, domain: str, played: Sequence[EvaluationEpisode]
) -> "EvalLog":
    from inspect_ai.log import (  # noqa: PLC0415
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalPlan,
        EvalResults,
        EvalScore,
        EvalSpec,
        EvalStats,
    )

    identity = f"{episodes.name}/{row}/{domain}"
    trials = max(one.trial for one in played) + 1
    names = list(dict.fromkeys(one.task.id for one in played))
    mean = sum(one.reward.value for one in played) / len(played)
    spec = EvalSpec(
        created=episodes.started,
        eval_id=_id(identity),
        run_id=_id(episodes.name),
        task=f"{domain}, {episodes.stage_label(row)}",
        task_id=_id(identity),
        dataset=EvalDataset(name=domain, samples=len(names), sample_ids=[*names]),
        model=str(episodes.config.get("model_name_or_path") or "unknown"),
        config=EvalConfig(epochs=trials),
        metadata={"run": episodes.name, "stage": row, "after": episodes.stages[row]},
        viewer=_viewer(played),
    )
    results = EvalResults(
        total_samples=len(played),
        completed_samples=len(played),
        scores=[
            EvalScore(
                name=REWARD,
                scorer=REWARD,
                metrics={"mean": EvalMetric(name="mean", value=mean)},
            )
        ],
    )
    return EvalLog(
        status="success",
        eval=spec,
        plan=EvalPlan(),
        results=results,
        stats=EvalStats(started_at=episodes.started, completed_at=episodes.started),
        samples=[_sample(one) for one in played],
    )


def _viewer(played: Sequence[EvaluationEpisode]) -> "ViewerConfig":
    """Columns of the list of samples: the reward and its components, coloured, are in sight."""
    from inspect_ai.viewer import (  # noqa: PLC0415
        TaskSamplesColumn,
        TaskSamplesView,
        ViewerConfig,
    )

    parts = [part for one in played for part in reward_parts(one.task, one.reward) if part.counts]
    labels = {part.name: part.label for part in parts}
    names = [REWARD, *labels]
    shown = ("sampleStatus", "sampleId", "epoch", "input")
    columns = [TaskSamplesColumn(id=name) for name in shown]
    columns += [TaskSamplesColumn.score(name) for name in names]
    samples = TaskSamplesView(
        name="episodes",
        columns=columns,
        score_labels=labels,
        score_color_scales=dict.fromkeys(names, "neutral"),
        color_scales_enabled=True,
    )
    return ViewerConfig(task_samples_view=samples)


def _sample(one: EvaluationEpisode) -> "EvalSample":
    from inspect_ai.log import EvalSample  # noqa: PLC0415
    from inspect_ai.model import ModelOutput  # noqa: PLC0415

    task, trajectory = one.task, one.trajectory
    told = ticket(task) if trajectory.solo else instructions(task)
    messages = _messages(one, told)
    replies = [message for message in trajectory.messages if message.role == "assistant"]
    return EvalSample(
        id=task.id,
        epoch=one.trial + 1,
        input=told,
        target=[_call_text(action.call) for action in task.gold_actions],
        messages=messages,
        output=ModelOutput.from_content("policy", (replies[-1].content or "") if replies else ""),
        scores=_scores(one),
        metadata={
            "domain": task.domain,
            "stage": one.row,
            "after": one.after,
            "ended": trajectory.termination.value,
            "seed": trajectory.seed,
        },
        uuid=_id(f"{one.row}/{task.domain}/{task.id}/{one.trial}"),
    )


def _scores(one: EvaluationEpisode) -> "dict[str, Score]":
    from inspect_ai.scorer import Score  # noqa: PLC0415

    reason = reward_reason(one.trajectory, one.reward)
    scores = {REWARD: Score(value=one.reward.value, explanation=reason or None)}
    for part in reward_parts(one.task, one.reward):
        if part.value is not None and part.counts:
            scores[part.name] = Score(value=part.value, explanation=part.why or None)
    return scores


def _messages(one: EvaluationEpisode, told: str) -> "list[ChatMessage]":
    """The conversation; in solo mode the ticket is the user's message."""
    from inspect_ai.model import ChatMessageUser  # noqa: PLC0415

    names = {call.id: call.name for call in one.trajectory.tool_calls}
    start: list[ChatMessage] = [ChatMessageUser(content=told)] if one.trajectory.solo else []
    given = [_message(message, names) for message in one.trajectory.messages]
    return [*start, *given]


def _message(message: Message, names: dict[str, str]) -> "ChatMessage":
    from inspect_ai.model import (  # noqa: PLC0415
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )
    from inspect_ai.tool import ToolCall as InspectCall  # noqa: PLC0415
    from inspect_ai.tool import ToolCallError  # noqa: PLC0415

    text = message.content or ""
    if message.role == "tool":
        call_id = message.id or ""
        error = ToolCallError("unknown", text) if message.error else None
        return ChatMessageTool(
            content=text, tool_call_id=call_id, function=names.get(call_id), error=error
        )
    calls = [
        InspectCall(id=call.id, function=call.name, arguments=dict[str, Any](call.arguments))
        for call in message.tool_calls or ()
    ]
    if message.role == "assistant":
        return ChatMessageAssistant(content=text, tool_calls=calls or None)
    if message.role == "user":  # Inspect's users have no tools: their calls are shown as text
        shown = [text, *(f"calls {_call_text(call)}" for call in message.tool_calls or ())]
        return ChatMessageUser(content="\n".join(part for part in shown if part))
    return ChatMessageSystem(content=text)


def _call_text(call: ToolCall) -> str:
    return f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})"


def _id(text: str) -> str:
    """An id that depends on the run and the cell only."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:22]
