"""PersonaMem: multiple-choice questions about a user, asked at points of a long conversation.

``questions_32k.csv`` needs ``shared_contexts_32k.jsonl`` in the same folder; the table of the
second release needs the chat histories it links to. System messages are dropped, since they state
the persona. Choices are shuffled with a stored seed and numbered: metrics drop the article ``a``,
so it cannot be a choice.
"""

import ast
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_cl.envs.memory.instances import Instance, Question
from grpo_cl.envs.memory.loaders.chunks import ChunkedDialogue, Turn, add_dialogue
from grpo_cl.envs.memory.loaders.files import (
    LoaderOptions,
    build,
    fields,
    parse_json,
    read_bytes,
    read_csv,
    read_lines,
)
from grpo_cl.errors import TaskDataError

LICENSE = "MIT"
HISTORY = "chat_history_32k_link"


def load_personamem(path: Path, options: LoaderOptions) -> list[Instance]:
    """One instance per conversation."""
    rows = read_csv(path)
    if rows and HISTORY in rows[0]:
        return _second_release(path, rows, options)
    contexts = _contexts(path)
    groups: dict[str, list[dict[str, str]]] = {}
    for number, row in enumerate(rows, 2):
        where = f"line {number} of {path}"
        (context_id,) = fields(row, ["shared_context_id"], where)
        if context_id not in contexts:
            raise TaskDataError(
                f"{where} refers to the context {context_id!r}, which is not among the "
                f"{len(contexts)} read; are both files of the same size?"
            )
        groups.setdefault(context_id, []).append(row)
    return [
        _instance(context_id, contexts[context_id], group, options)
        for context_id, group in list(groups.items())[: options.limit]
    ]


def _contexts(path: Path) -> dict[str, list[Any]]:
    contexts = path.with_name(path.name.replace("questions", "shared_contexts")).with_suffix(
        ".jsonl"
    )
    if contexts == path or not contexts.exists():
        raise TaskDataError(
            f"{path} needs its conversations beside it: there is no {contexts.name}"
        )
    return {name: turns for line in read_lines(contexts) for name, turns in line.items()}


def _instance(
    name: str, turns: Any, rows: Sequence[Mapping[str, str]], options: LoaderOptions
) -> Instance:
    where = f"context {name!r}"
    ends = [_end(row, len(turns), where) for row in rows]
    dialogue = ChunkedDialogue([], {})
    after: dict[int, int] = {}
    start = 0
    for end in sorted({*ends, len(turns)}):
        session = _dialogue_turns(turns[start:end], where)
        add_dialogue(dialogue, session, date=None, limit=options.chunk_tokens)
        after[end] = len(dialogue.chunks) - 1
        start = end
    questions = [
        _first_release_question(row, after[end], options.seed)
        for row, end in zip(rows, ends, strict=True)
    ]
    return _built(name, dialogue, questions)


def _built(name: str, dialogue: ChunkedDialogue, questions: Sequence[Question]) -> Instance:
    return build(
        f"context {name!r}",
        id=f"personamem/{name}",
        chunks=tuple(dialogue.chunks),
        questions=tuple(questions),
        source="personamem",
        license=LICENSE,
    )


def _end(row: Mapping[str, str], count: int, where: str) -> int:
    (text,) = fields(row, ["end_index_in_shared_context"], where)
    if not text.isdigit() or not 0 < int(text) <= count:
        raise TaskDataError(
            f"end_index_in_shared_context {text!r} of {where} is no number from 1 to {count}"
        )
    return int(text)


def _dialogue_turns(turns: Sequence[Any], where: str) -> list[Turn]:
    dialogue_turns: list[Turn] = []
    for turn in turns:
        role, content = fields(turn, ["role", "content"], where)
        if role != "system":
            dialogue_turns.append(Turn(line=f"{role}: {content}", key=""))
    return dialogue_turns


def _first_release_question(row: Mapping[str, str], after: int, seed: int) -> Question:
    question_id, kind, text, correct, listed = fields(
        row,
        [
            "question_id",
            "question_type",
            "user_question_or_message",
            "correct_answer",
            "all_options",
        ],
        "a question",
    )
    where = f"question {question_id!r}"
    options = [str(option) for option in _literal(listed, where)]
    matching = [option for option in options if option.startswith(correct.strip())]
    if len(matching) != 1:
        raise TaskDataError(
            f"the correct answer {correct!r} of {where} begins {len(matching)} of its options; "
            "it must begin exactly one"
        )
    choices = [option.partition(")")[2].strip() or option for option in options]
    answer = choices[options.index(matching[0])]
    return _choice(question_id, text, kind, answer, choices, seed).model_copy(
        update={"ask_after": max(after, 0)}
    )


def _second_release(
    path: Path, rows: Sequence[Mapping[str, str]], options: LoaderOptions
) -> list[Instance]:
    groups: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row[HISTORY], []).append((number, row))
    instances: list[Instance] = []
    for link, group in list(groups.items())[: options.limit]:
        dialogue = ChunkedDialogue([], {})
        turns = _dialogue_turns(_history(path, link), link)
        add_dialogue(dialogue, turns, date=None, limit=options.chunk_tokens)
        questions = [_second_release_question(row, number, options.seed) for number, row in group]
        instances.append(_built(Path(link).stem, dialogue, questions))
    return instances


def _history(path: Path, link: str) -> list[Any]:
    for folder in path.resolve().parents:  # links are relative to the root of the release
        if (folder / link).is_file():
            value = parse_json(read_bytes(folder / link), link)
            return value["chat_history"] if isinstance(value, dict) else value
    raise TaskDataError(f"{path} links to {link}, which is in no folder above it; download it too")


def _second_release_question(row: Mapping[str, str], number: int, seed: int) -> Question:
    where = f"row {number}"
    query, correct, wrong = fields(
        row, ["user_query", "correct_answer", "incorrect_answers"], where
    )
    message = _literal(query, where) if query.lstrip().startswith("{") else {"content": query}
    options = [correct, *(str(option) for option in _literal(wrong, where))]
    kind = row.get("pref_type") or "preference"
    return _choice(f"row-{number}", message["content"], kind, correct, options, seed)


def _choice(
    question_id: str, text: str, kind: str, answer: str, options: Sequence[str], seed: int
) -> Question:
    shuffled = random.Random(f"{seed}/{question_id}").sample(options, len(options))
    listing = "\n".join(f"({number}) {option}" for number, option in enumerate(shuffled, 1))
    return Question(
        question_id=question_id,
        question=f"{text}\nWhich reply fits best? Answer with its number.\n{listing}",
        answers=(str(shuffled.index(answer) + 1),),
        qtype=kind,
        meta={"shuffle_seed": seed, "choices": list(shuffled)},
    )


def _literal(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass  # the tables also contain Python literals
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise TaskDataError(f"{where} holds {text[:60]!r}, which is no list or object") from error
