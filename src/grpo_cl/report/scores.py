"""The parts of the page about what was learned and what was kept."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from grpo_cl.metrics.continual import Scores, continual_scores, pass_hat_k
from grpo_cl.metrics.rmatrix import BASE, TOOL_ARGUMENTS, TOOL_NAME, Cell, RMatrix
from grpo_cl.report.html import Html, join, note, number, section, table, tag, words
from grpo_cl.report.run import Run

COMPONENTS = {
    TOOL_NAME: "tool choice",
    TOOL_ARGUMENTS: "tool arguments",
    "DB": "database",
    "ENV_ASSERTION": "assertions about the world",
    "ACTION": "every gold action",
    "COMMUNICATE": "communication",
    "NL_ASSERTION": "judged statements",
}
_CARDS = (
    ("average_performance", "Average performance", "all domains, at the end", ".3f"),
    ("learning_accuracy", "Learning accuracy", "each domain, just learned", ".3f"),
    ("backward_transfer", "Backward transfer", "earlier domains, since learned", "+.3f"),
    ("forgetting", "Forgetting", "earlier domains, from their best", "+.3f"),
    ("forward_transfer", "Forward transfer", "later domains, before learning", "+.3f"),
)
LISTED_TASKS = 200
"""Changed tasks shown; the files hold the others."""


def summary_section(run: Run) -> Html:
    """The headline numbers."""
    scores = run.matrix.scores()
    found = dict(continual_scores(scores))
    cards = [
        tag(
            "div",
            tag("span", title, class_="what"),
            tag("b", number(found[name], form)),
            tag("small", remark),
            class_="card",
        )
        for name, title, remark, form in _CARDS
    ]
    learned = max(0, len(scores) - 1)
    stages = f"{learned} of {len(run.matrix.domains)} domains learned and measured"
    base = _untrained(scores)
    untrained = join(["; the untrained policy's average on them is ", number(base), "."])
    return section("Summary", tag("div", *cards, class_="cards"), note(stages, untrained))


def matrix_section(run: Run) -> Html:
    """The R-matrix with the floors it has to be read against."""
    matrix = run.matrix
    stages = [BASE, *matrix.domains]
    head = tag("tr", tag("th", "mean reward"), *(tag("th", d, scope="col") for d in matrix.domains))
    rows = [
        tag(
            "tr",
            tag("th", "untrained" if stage == BASE else join(["after ", stage]), scope="row"),
            *(_score(matrix.cell(stage, d), is_learned=stage == d) for d in matrix.domains),
        )
        for stage in stages
    ]
    body = tag("tbody", *rows, *_floors(matrix))
    shown = tag("table", tag("thead", head), body, class_="matrix")
    return section(
        "R-matrix",
        tag("div", shown, class_="scroll"),
        note("Rows: when it was measured. Framed: just learned. A dash: not measured."),
        _reliability(matrix),
    )


def component_section(run: Run) -> Html:
    """Which part of the work was forgotten."""
    matrix = run.matrix
    rows = [row for domain in matrix.domains for row in _component_rows(matrix, domain)]
    if not rows:
        return section("What was forgotten", note("No components were measured."))
    head = ("domain", "part", "untrained", "just learned", "at the end", "since learned")
    remark = "A part in brackets is in no task's reward of that domain."
    return section("What was forgotten", table(head, rows), note(remark))


def task_section(run: Run) -> Html:
    """The tasks whose outcome changed since their domain was learned."""
    changed = [
        (domain, task, before, after)
        for domain in run.matrix.domains
        for task, before, after in _changed_tasks(run.matrix, domain)
    ]
    if not changed:
        return section("Tasks lost and won", note("No task changed since its domain was learned."))
    changed.sort(key=lambda row: _share(row[3]) - _share(row[2]))
    rows = [
        (domain, words(tag("code", task)), _counts(before), _counts(after))
        for domain, task, before, after in changed[:LISTED_TASKS]
    ]
    lost = sum(_share(after) < _share(before) for _, _, before, after in changed)
    summary = f"Since their domain was learned: {lost} lost, {len(changed) - lost} won"
    shown = table(("domain", "task", "just learned", "at the end"), rows)
    details = tag("details", tag("summary", summary), shown)
    rest = len(changed) - LISTED_TASKS
    return section(
        "Tasks lost and won",
        details,
        note(f"{rest} more are in r_matrix.json.") if rest > 0 else "",
    )


def change_cell(value: float | None) -> Html:
    """A change, coloured by its direction."""
    shade = None if not value else "worse" if value < 0 else "better"
    return tag("td", number(value, "+.3f"), class_=shade)


def _untrained(scores: Scores) -> float | None:
    learned = len(scores) - 1
    known = [score for score in scores[0][:learned] if score is not None] if learned > 0 else []
    return fmean(known) if known and len(known) == learned else None


def _score(cell: Cell | None, *, is_learned: bool) -> Html:
    frame = "learned" if is_learned else None
    if cell is None:
        return tag("td", number(None), class_=frame)
    share = min(1.0, max(0.0, cell.mean))
    red, green, blue = (round(255 - share * (255 - end)) for end in (33, 113, 181))
    ink = "#fff" if share > 0.7 else "#222"
    return tag(
        "td",
        number(cell.mean),
        class_=frame,
        style=f"background: rgb({red}, {green}, {blue}); color: {ink}",
        title=f"{len(cell.tasks)} tasks, {sum(n for _, n in cell.tasks.values())} episodes",
    )


def _floors(matrix: RMatrix) -> Iterator[Html]:
    facts = [matrix.facts.get(domain) for domain in matrix.domains]
    idle = [fact.idle if fact else None for fact in facts]
    transfer = [fact.transfer if fact else None for fact in facts]
    for label, values in (("does nothing", idle), ("hands over at once", transfer)):
        if any(value is not None for value in values):
            cells = (tag("td", number(value)) for value in values)
            yield tag("tr", tag("th", label, scope="row"), *cells, class_="floor")


def _reliability(matrix: RMatrix) -> Html:
    last = matrix.rows[-1].cells if matrix.rows else {}
    trials = min((n for cell in last.values() for _, n in cell.tasks.values()), default=0)
    if trials < 2:
        return Html("")
    powers = [k for k in (1, 2, 4, 8) if k <= trials]
    rows = [
        (domain, *(number(pass_hat_k(last[domain].tasks, k)) for k in powers))
        for domain in matrix.domains
        if domain in last
    ]
    head = ("at the end", *(f"pass^{k}" for k in powers))
    remark = f"pass^k: the chance that k plays of a task all succeed, from {trials} plays of each."
    return join([tag("h3", "Reliability"), table(head, rows), note(remark)])


def _component_rows(matrix: RMatrix, domain: str) -> Iterator[Sequence[object]]:
    base, learned, last = (
        matrix.cell(BASE, domain),
        matrix.cell(domain, domain),
        matrix.cell(matrix.rows[-1].after, domain) if matrix.rows else None,
    )
    basis = matrix.facts[domain].basis if domain in matrix.facts else None
    present = {name for cell in (base, learned, last) if cell for name in cell.components}
    order = [*COMPONENTS, *sorted(present - set(COMPONENTS))]
    for name in (name for name in order if name in present):
        label = COMPONENTS.get(name, name)
        is_extra = basis is not None and name.isupper() and name not in basis
        before, after = _component(learned, name), _component(last, name)
        yield (
            domain,
            words(f"[{label}]" if is_extra else label),
            number(_component(base, name)),
            number(before),
            number(after),
            change_cell(None if before is None or after is None else after - before),
        )


def _component(cell: Cell | None, name: str) -> float | None:
    return cell.components.get(name) if cell else None


def _changed_tasks(
    matrix: RMatrix, domain: str
) -> Iterator[tuple[str, tuple[int, int], tuple[int, int]]]:
    learned = matrix.cell(domain, domain)
    last = matrix.cell(matrix.rows[-1].after, domain) if matrix.rows else None
    if learned is None or last is None:
        return
    for task, before in learned.tasks.items():
        after = last.tasks.get(task)
        if after is not None and _share(after) != _share(before):
            yield task, before, after


def _share(counts: tuple[int, int]) -> float:
    return counts[0] / counts[1]


def _counts(counts: tuple[int, int]) -> str:
    return f"{counts[0]} of {counts[1]}"
