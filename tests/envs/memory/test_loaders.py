import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from grpo_cl.envs.memory import Chunk, Instance, Question
from grpo_cl.envs.memory.baselines import copy_lines, run_baseline
from grpo_cl.envs.memory.loaders import LOADERS, LoaderOptions, load_instances, save_jsonl
from grpo_cl.errors import ConfigError, TaskDataError
from paths import SHARED

LOCOMO = SHARED / "locomo"


def written(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def sheet(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def turn(key: str, speaker: str, text: str, **more: str) -> dict[str, str]:
    return {"dia_id": key, "speaker": speaker, "text": text, **more}


def conversation() -> dict[str, Any]:
    return {
        "speaker_a": "Ilse",
        "speaker_b": "Tom",
        "session_1_date_time": "9:00 am on 3 March, 2023",
        "session_1": [
            turn("D1:1", "Ilse", "I planted seven plum trees."),
            turn("D1:2", "Tom", "Look!", blip_caption="a wet dog"),
        ],
        "session_2_date_time": "1:10 pm on 4 April, 2023",
        "session_2": [turn("D2:1", "Tom", "My sister Else came by.")],
        "session_3_date_time": "of a session that does not exist",
    }


def asked(category: int, **more: Any) -> dict[str, Any]:
    return {"question": "How many?", "category": category, "evidence": [], **more}


def test_locomo_conversations_become_dated_chunks_with_evidence(tmp_path: Path):
    qa = [
        asked(4, answer=7, evidence=["D1:1"]),
        asked(
            1, answer="Else, who is Tom's sister, as was told much later", evidence=["D1:2; D2:1"]
        ),
        asked(2, answer="4 April", evidence=["D2:1", "D9:9"]),
        asked(5, adversarial_answer="nine", evidence=["D1:1"]),
    ]
    sample = {"sample_id": "c1", "conversation": conversation(), "qa": qa}
    [instance] = load_instances(written(tmp_path / "locomo.json", [sample]), "locomo")
    first, second = instance.chunks
    assert first.timestamp == "9:00 am on 3 March, 2023"
    assert first.content == (
        "[Dialogue on 9:00 am on 3 March, 2023]\n"
        "Ilse: I planted seven plum trees.\n"
        "Tom: Look! [shows a picture: a wet dog]"
    )
    assert second.chunk_id == 1
    number, several, dangling, adversarial = instance.questions
    assert (number.answers, number.metric, number.evidence) == (("7",), "contains", (0,))
    assert (several.evidence, several.metric, several.qtype) == ((0, 1), "judge", "multi_hop")
    assert (dangling.evidence, dangling.meta) == ((1,), {"dangling_evidence": ["D9:9"]})
    assert adversarial.is_unanswerable
    assert adversarial.meta == {"adversarial_answer": "nine"}
    assert "NC" in instance.license


def test_flat_locomo_layout_is_loaded(tmp_path: Path):
    flat = conversation() | {"qa": [asked(4, answer="plum", evidence=["D1:1"])]}
    [instance] = load_instances(written(tmp_path / "dialogue7.json", flat), "locomo")
    assert instance.id == "locomo/dialogue7"
    assert instance.questions[0].evidence == (0,)


def test_long_session_is_split_between_turns(tmp_path: Path):
    qa = [asked(4, answer="wet", evidence=["D1:2"])]
    flat = conversation() | {"qa": qa}
    path = written(tmp_path / "d.json", flat)
    [instance] = load_instances(path, "locomo", LoaderOptions(chunk_tokens=8))
    assert [chunk.chunk_id for chunk in instance.chunks] == [0, 1, 2]
    assert all(chunk.content.startswith("[Dialogue on ") for chunk in instance.chunks)
    assert instance.questions[0].evidence == (1,)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (asked(4), "has no field 'answer'"),
        (asked(4, answer=None), "answer None of question 0 .* is no text"),
        (asked(4, answer=" "), "is blank"),
        (asked(9, answer="x"), "has the category 9; known: 1 to 5"),
    ],
)
def test_locomo_error_names_the_question_without_an_answer(
    tmp_path: Path, question: dict[str, Any], message: str
):
    path = written(tmp_path / "d.json", conversation() | {"qa": [question]})
    with pytest.raises(TaskDataError, match=message):
        load_instances(path, "locomo")


def haystack(question_id: str, answer: Any, **more: Any) -> dict[str, Any]:
    said = {"role": "user", "content": "I bought a kayak.", "has_answer": True}
    return {
        "question_id": question_id,
        "question_type": "single-session-user",
        "question": "What did I buy?",
        "answer": answer,
        "question_date": "2023/05/30 (Tue) 23:17",
        "haystack_session_ids": ["later", "earlier"],
        "haystack_dates": ["2023/05/21 (Sun) 10:00", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [
            [{"role": "user", "content": "Hello " * 30}, said],
            [{"role": "assistant", "content": "Good morning."}],
        ],
        "answer_session_ids": ["later"],
        **more,
    }


def test_longmemeval_sessions_are_sorted_by_date_and_shared_by_questions(tmp_path: Path):
    rows = [
        haystack("q1", "a kayak"),
        haystack("q2", 3),
        haystack("q3_abs", "You did not mention a boat.", answer_session_ids=["gone"]),
    ]
    path = written(tmp_path / "longmemeval_oracle.json", rows)
    [instance] = load_instances(path, "longmemeval", LoaderOptions(chunk_tokens=32))
    assert [chunk.timestamp for chunk in instance.chunks] == [
        "2023/05/20 (Sat) 02:21",
        "2023/05/21 (Sun) 10:00",
        "2023/05/21 (Sun) 10:00",
    ]
    first, number, abstention = instance.questions
    assert first.question == "[Asked on 2023/05/30 (Tue) 23:17] What did I buy?"
    assert (first.answers, first.evidence) == (("a kayak",), (2,))
    assert number.answers == ("3",)
    assert (abstention.answers, abstention.qtype) == ((), "abstention")
    assert abstention.meta["explanation"] == "You did not mention a boat."
    assert abstention.meta["question_type"] == "single-session-user"
    assert abstention.meta["dangling_evidence"] == ["gone"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"haystack_dates": ["2023/05/21 (Sun) 10:00"]}, "2 session ids, 1 dates and 2 sessions"),
        ({"haystack_dates": ["May", "June"]}, "'May' .* cannot be read; write it as 2023/05/30"),
        ({"answer": {"text": "kayak"}}, "is no text"),
    ],
)
def test_longmemeval_error_names_the_damaged_question(
    tmp_path: Path, change: dict[str, Any], message: str
):
    path = written(tmp_path / "l.json", [haystack("q1", "a kayak") | change])
    with pytest.raises(TaskDataError, match=message):
        load_instances(path, "longmemeval")


def bench_row(source: str, **more: Any) -> dict[str, Any]:
    return {
        "context": "0. The pear is green. 1. The pear is brown now! Nobody knows why.",
        "questions": ["Which colour?", "Which fruit?"],
        "answers": [["brown", "Brown"], ["pear"]],
        "metadata": {"source": source, "qa_pair_ids": ["u1", "u2"], "question_types": []},
        **more,
    }


def test_memoryagentbench_contexts_are_split_by_sentence(tmp_path: Path):
    rows = [bench_row("factconsolidation_sh_6k"), bench_row("icl_banking77")]
    path = table(tmp_path / "Conflict_Resolution.parquet", rows)
    facts, labels = load_instances(path, "memoryagentbench", LoaderOptions(chunk_tokens=11))
    assert [chunk.content for chunk in facts.chunks] == [
        "0. The pear is green.",
        "1. The pear is brown now!",
        "Nobody knows why.",
    ]
    assert facts.questions[0].answers == ("brown", "Brown")
    assert [question.question_id for question in facts.questions] == ["u1", "u2"]
    assert facts.questions[0].metric == "contains"
    assert labels.questions[0].metric == "exact"
    assert (labels.questions[0].qtype, labels.source) == ("icl_banking77", "icl_banking77")


def test_text_without_sentences_is_split_between_words(tmp_path: Path):
    row = bench_row("ruler_qa1", context="pear " * 25)
    path = written(tmp_path / "m.json", [row])
    [instance] = load_instances(path, "memoryagentbench", LoaderOptions(chunk_tokens=10))
    assert [chunk.content.count("pear") for chunk in instance.chunks] == [10, 10, 5]


def test_older_memoryagentbench_rows_keep_their_ids(tmp_path: Path):
    row = bench_row("eventqa_full", metadata={"source": "eventqa_full", "uuid": ["a", "b"]})
    [instance] = load_instances(written(tmp_path / "m.json", [row]), "memoryagentbench")
    assert [question.question_id for question in instance.questions] == ["a", "b"]


def test_memoryagentbench_needs_an_answer_per_question(tmp_path: Path):
    path = written(tmp_path / "m.json", [bench_row("x", answers=[["brown"]])])
    with pytest.raises(TaskDataError, match="2 questions and 1 answers"):
        load_instances(path, "memoryagentbench")


def alpha_row(source: str, answer: str, **more: Any) -> dict[str, Any]:
    return {
        "instance_id": f"{source}_0",
        "prompt": "unused",
        "chunks": json.dumps(["Dialogue one.", "Dialogue two."]),
        "questions_and_answers": json.dumps([{"question": "ActorChoice?", "answer": answer}]),
        "data_source": source,
        "num_chunks": 2,
        "num_questions": 1,
        **more,
    }


def test_memalpha_answers_are_split_by_the_separator_of_their_source(tmp_path: Path):
    rows = [
        alpha_row("squad", "a baker, in Ghent"),
        alpha_row("booksum", "storm, lighthouse,  letter"),
        alpha_row("perltqa", "Lena; Omar"),
        alpha_row("ttl_train", "17"),
    ]
    instances = load_instances(table(tmp_path / "train.parquet", rows), "memalpha")
    questions = [instance.questions[0] for instance in instances]
    assert [(question.answers, question.metric) for question in questions] == [
        (("a baker, in Ghent",), "contains"),
        (("storm", "lighthouse", "letter"), "keywords"),
        (("Lena", "Omar"), "contains"),
        (("17",), "boxed"),
    ]
    assert [chunk.content for chunk in instances[0].chunks] == ["Dialogue one.", "Dialogue two."]


def test_memalpha_error_names_the_truncated_row(tmp_path: Path):
    path = table(tmp_path / "a.parquet", [alpha_row("squad", "x", chunks='["Dialogue')])
    with pytest.raises(TaskDataError, match=r"chunks of row 0 .* is no JSON"):
        load_instances(path, "memalpha")
    path = table(tmp_path / "b.parquet", [alpha_row("squad", "x", chunks='"text"')])
    with pytest.raises(TaskDataError, match="hold str, not a list"):
        load_instances(path, "memalpha")
    path = table(tmp_path / "c.parquet", [alpha_row("squad", "x", chunks="[]")])
    with pytest.raises(TaskDataError, match="has no chunks; it needs at least one"):
        load_instances(path, "memalpha")


OPTIONS = ["(a) Try the lake.", "(b) Try the moor.", "(c) Try the bog."]


def persona_row(**more: str) -> dict[str, str]:
    return {
        "persona_id": "3",
        "question_id": "q1",
        "question_type": "suggest_new_ideas",
        "user_question_or_message": "Where shall I walk?",
        "correct_answer": "(b)",
        "all_options": repr(OPTIONS),
        "shared_context_id": "ctx",
        "end_index_in_shared_context": "3",
        **more,
    }


def persona_files(tmp_path: Path, rows: list[dict[str, str]]) -> Path:
    turns = [
        {"role": "system", "content": "The user loves moors."},
        {"role": "user", "content": "I walked on the moor."},
        {"role": "assistant", "content": "How nice."},
        {"role": "user", "content": "Now I like lakes."},
    ]
    (tmp_path / "shared_contexts_32k.jsonl").write_text(json.dumps({"ctx": turns}) + "\n")
    return sheet(tmp_path / "questions_32k.csv", rows)


def test_personamem_questions_are_asked_after_their_chunk(tmp_path: Path):
    rows = [persona_row(), persona_row(question_id="q2", end_index_in_shared_context="4")]
    path = persona_files(tmp_path, rows)
    [instance] = load_instances(path, "personamem")
    assert [chunk.content for chunk in instance.chunks] == [
        "[Dialogue]\nuser: I walked on the moor.\nassistant: How nice.",
        "[Dialogue]\nuser: Now I like lakes.",
    ]
    early, late = instance.questions
    assert (early.ask_after, late.ask_after) == (0, 1)
    choices = early.meta["choices"]
    assert isinstance(choices, list)
    assert sorted(map(str, choices)) == ["Try the bog.", "Try the lake.", "Try the moor."]
    assert early.answers == (str(choices.index("Try the moor.") + 1),)
    assert f"({early.answers[0]}) Try the moor." in early.question


def test_personamem_choices_are_shuffled_with_the_stored_seed(tmp_path: Path):
    path = persona_files(tmp_path, [persona_row(question_id=f"q{n}") for n in range(12)])
    [one] = load_instances(path, "personamem", LoaderOptions(seed=1))
    [again] = load_instances(path, "personamem", LoaderOptions(seed=1))
    [other] = load_instances(path, "personamem", LoaderOptions(seed=2))
    assert one == again
    assert [q.answers for q in one.questions] != [q.answers for q in other.questions]
    assert one.questions[0].meta["shuffle_seed"] == 1
    assert {q.answers for q in one.questions} == {("1",), ("2",), ("3",)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shared_context_id": "other"}, "refers to the context 'other'"),
        ({"end_index_in_shared_context": "9"}, "is no number from 1 to 4"),
        ({"correct_answer": "(z)"}, "begins 0 of its options"),
        ({"all_options": "[oops"}, "is no list or object"),
    ],
)
def test_personamem_error_names_the_damaged_row(
    tmp_path: Path, change: dict[str, str], message: str
):
    path = persona_files(tmp_path, [persona_row(**change)])
    with pytest.raises(TaskDataError, match=message):
        load_instances(path, "personamem")


def test_personamem_needs_its_context_file(tmp_path: Path):
    path = sheet(tmp_path / "questions_32k.csv", [persona_row()])
    with pytest.raises(TaskDataError, match=r"there is no shared_contexts_32k\.jsonl"):
        load_instances(path, "personamem")


def test_second_personamem_release_loads_its_linked_histories(tmp_path: Path):
    row = {
        "persona_id": "5",
        "chat_history_32k_link": "data/chat_history_32k/persona5.json",
        "user_query": repr({"role": "user", "content": "What's for dinner?"}),
        "correct_answer": "Lentils, as you eat no meat.",
        "incorrect_answers": json.dumps(["Beef.", "Pork."]),
        "pref_type": "health",
    }
    folder = tmp_path / "benchmark" / "text"
    folder.mkdir(parents=True)
    path = sheet(folder / "benchmark.csv", [row])
    with pytest.raises(TaskDataError, match="which is in no folder above it"):
        load_instances(path, "personamem")
    history = tmp_path / row["chat_history_32k_link"]
    history.parent.mkdir(parents=True)
    said = [{"role": "user", "content": "I eat no meat."}]
    written(history, {"metadata": {}, "chat_history": said})
    [instance] = load_instances(path, "personamem")
    [question] = instance.questions
    assert instance.chunks[0].content == "[Dialogue]\nuser: I eat no meat."
    assert f"({question.answers[0]}) Lentils, as you eat no meat." in question.question


def own_instance() -> Instance:
    return Instance(
        id="own/1",
        chunks=(Chunk(chunk_id=0, content="Ava lives in Zürich.", labels={"facts": []}),),
        questions=(
            Question(
                question_id="q",
                question="Where does Ava live?",
                answers=("Zürich",),
                qtype="single",
                evidence=(0,),
                ask_after=0,
            ),
        ),
        source="own",
        license="MIT",
        meta={"seed": 1},
    )


def test_jsonl_files_round_trip(tmp_path: Path):
    path = tmp_path / "own.jsonl"
    other = own_instance().model_copy(update={"id": "own/2"})
    save_jsonl(path, [own_instance(), other])
    assert load_instances(path, "jsonl") == [own_instance(), other]
    assert load_instances(path, "jsonl", LoaderOptions(limit=1)) == [own_instance()]


def test_jsonl_file_of_another_version_is_refused(tmp_path: Path):
    path = tmp_path / "own.jsonl"
    save_jsonl(path, [own_instance()])
    line = json.loads(path.read_text())
    path.write_text(json.dumps(line | {"version": 9}))
    with pytest.raises(TaskDataError, match=r"line 1 .* has the version 9, this release reads 1"):
        load_instances(path, "jsonl")
    path.write_text(json.dumps(line | {"colour": "red"}))
    with pytest.raises(TaskDataError, match=r"line 1 .* is no instance"):
        load_instances(path, "jsonl")
    path.write_text(path.read_text()[:50])
    with pytest.raises(TaskDataError, match=r"line 1 of .* is no JSON"):
        load_instances(path, "jsonl")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunks": ()}, "has no chunks"),
        ({"chunks": own_instance().chunks * 2}, "must rise"),
        ({"questions": own_instance().questions * 2}, "occurs twice"),
        (
            {"questions": (own_instance().questions[0].model_copy(update={"evidence": (4,)}),)},
            r"refers to chunks \[4\]",
        ),
    ],
)
def test_inconsistent_ids_of_an_instance_are_refused(change: dict[str, Any], message: str):
    parts = dict(own_instance()) | change
    with pytest.raises(ValidationError, match=message):
        Instance(**parts)


@pytest.mark.parametrize("name", ["jsonl", "locomo", "longmemeval", "memalpha", "personamem"])
def test_git_lfs_pointer_is_refused(tmp_path: Path, name: str):
    path = tmp_path / "data.parquet"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1000\n")
    with pytest.raises(TaskDataError, match="git-LFS pointer of 67 bytes, not the data"):
        load_instances(path, name)


def test_errors_name_missing_files_and_files_of_another_format(tmp_path: Path):
    with pytest.raises(TaskDataError, match=r"cannot read .*: No such file"):
        load_instances(tmp_path / "none.json", "locomo")
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(TaskDataError, match="is no parquet file"):
        load_instances(tmp_path / "text.parquet", "memalpha")
    path = written(tmp_path / "other.json", [{"some": "thing"}])
    with pytest.raises(TaskDataError, match="has no field 'qa', only some"):
        load_instances(path, "locomo")
    with pytest.raises(ConfigError, match=r"unknown memory format 'lokomo'.* mean 'locomo'"):
        load_instances(path, "lokomo")


def locomo_file(folder: Path, name: str) -> Path:
    qa = [asked(4, answer="plum", evidence=["D1:1"])]
    return written(folder / f"{name}.json", conversation() | {"qa": qa})


def longmemeval_file(folder: Path, name: str) -> Path:
    return written(folder / f"{name}.json", [haystack(name, "a kayak")])


def memoryagentbench_file(folder: Path, name: str) -> Path:
    return table(folder / f"{name}.parquet", [bench_row("eventqa_full")])


def memalpha_file(folder: Path, name: str) -> Path:
    return table(folder / f"{name}.parquet", [alpha_row("squad", "Ghent", instance_id=name)])


def personamem_file(folder: Path, name: str) -> Path:
    turns = [{"role": "user", "content": "I walked on the moor."}] * 3
    contexts = folder / f"{name}_shared_contexts.jsonl"
    contexts.write_text(json.dumps({name: turns}))
    return sheet(folder / f"{name}_questions.csv", [persona_row(shared_context_id=name)])


def jsonl_file(folder: Path, name: str) -> Path:
    save_jsonl(folder / f"{name}.jsonl", [own_instance().model_copy(update={"id": name})])
    return folder / f"{name}.jsonl"


FILES: dict[str, Callable[[Path, str], Path]] = {
    "jsonl": jsonl_file,
    "locomo": locomo_file,
    "longmemeval": longmemeval_file,
    "memalpha": memalpha_file,
    "memoryagentbench": memoryagentbench_file,
    "personamem": personamem_file,
}


@pytest.mark.parametrize("name", LOADERS)
def test_files_of_a_folder_are_loaded_in_the_order_of_their_names(tmp_path: Path, name: str):
    later, earlier = FILES[name](tmp_path, "b7"), FILES[name](tmp_path, "a31")
    (tmp_path / "README.md").write_text("not loaded")
    (tmp_path / f".{earlier.name}").write_text("not loaded")
    both = [*load_instances(earlier, name), *load_instances(later, name)]
    assert load_instances(tmp_path, name) == both
    assert len({instance.id for instance in both}) == 2
    assert load_instances(tmp_path, name, LoaderOptions(limit=1)) == both[:1]


@pytest.mark.parametrize("name", LOADERS)
def test_folder_without_files_of_the_format_is_refused(tmp_path: Path, name: str):
    with pytest.raises(TaskDataError, match=r"holds no \.\w+.* file, but nothing; name a file"):
        load_instances(tmp_path, name)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(TaskDataError, match=r"file, but notes\.txt; name a file"):
        load_instances(tmp_path, name)


def test_file_of_another_format_in_a_folder_is_named(tmp_path: Path):
    locomo_file(tmp_path, "a")
    written(tmp_path / "other.json", {"some": "thing"})
    message = r"of .*other\.json has no field 'qa', only some.*all \.json files of the folder are"
    with pytest.raises(TaskDataError, match=message):
        load_instances(tmp_path, "locomo")


def test_files_of_a_folder_with_the_same_instance_are_refused(tmp_path: Path):
    for size in ("s", "m"):
        written(tmp_path / f"longmemeval_{size}.json", [haystack("q1", "a kayak")])
    message = r"_m\.json and .*_s\.json both hold the instance 'longmemeval/q1'; name the file"
    with pytest.raises(TaskDataError, match=message):
        load_instances(tmp_path, "longmemeval")


@pytest.mark.skipif(not LOCOMO.is_dir(), reason=f"needs the conversations of LoCoMo in {LOCOMO}")
def test_conversations_of_locomo_are_loaded_whole():
    instances = load_instances(LOCOMO, "locomo", LoaderOptions(chunk_tokens=10**6))
    assert [instance.id for instance in instances] == [
        f"locomo/{number}" for number in (26, 30, 41, 42, 43, 44, 47, 48, 49, 50)
    ]
    assert sum(len(instance.chunks) for instance in instances) == 272  # a session is a chunk
    questions = [question for instance in instances for question in instance.questions]
    assert Counter(question.qtype for question in questions) == {
        "multi_hop": 282,
        "temporal": 321,
        "open_domain": 96,
        "single_hop": 841,
        "adversarial": 446,
    }
    assert len(questions) == 1986
    assert {
        question.is_unanswerable for question in questions if question.qtype != "adversarial"
    } == {False}
    assert sum("dangling_evidence" in question.meta for question in questions) == 3


def test_append_only_baseline_stores_the_turns_of_any_speaker(tmp_path: Path):
    [instance] = load_instances(locomo_file(tmp_path, "a"), "locomo")
    entries = run_baseline(instance, copy_lines).memory.entries.values()
    assert [(entry.content, entry.timestamp) for entry in entries] == [
        ("Ilse: I planted seven plum trees.", "9:00 am on 3 March, 2023"),
        ("Tom: Look! [shows a picture: a wet dog]", "9:00 am on 3 March, 2023"),
        ("Tom: My sister Else came by.", "1:10 pm on 4 April, 2023"),
    ]
