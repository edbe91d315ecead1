"""Damaged journals: found by their checksums, and gone on without if the user accepts it.

The intact lines of an accepted journal are kept, the damaged file is moved to ``damaged/``, and
``damage.json`` says what is lost. Checkpoints that were made before know the journal as it was;
``damage.json`` also has what it is now, so that they can be resumed again.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import NonNegativeInt

from grpo_cl.errors import CheckpointError
from grpo_cl.runs.checkpoint_state import read_checkpoint_state, seal_of, with_seals
from grpo_cl.runs.checkpoints import newest_checkpoint
from grpo_cl.runs.layout import CheckpointFiles, RunDir
from grpo_cl.runs.result_files import changed_file
from grpo_cl.runs.state_files import StateKind, read_state, write_state
from grpo_cl.storage.checksums import Seal, extended_seal, find_damage, repair
from grpo_cl.storage.files import sync_folder, writing
from grpo_cl.storage.journal import require_offset
from grpo_cl.types import Record


class JournalState(Record):
    """A journal at some time; a ``Seal`` as a record."""

    size: NonNegativeInt
    lines: NonNegativeInt
    sha256: str


class AcceptedDamage(Record):
    """Damage of one journal without which the run went on."""

    step: NonNegativeInt
    """The number of updates at the checkpoint from which the run went on."""
    journal: str
    """The name of the journal in the state of a checkpoint."""
    problem: str
    lost: NonNegativeInt
    """Lines that are no longer in the journal; 0 if it is not known how many there were."""
    moved_to: str | None
    """The damaged file, relative to the run directory; None if there was none."""
    before: JournalState
    """The journal when the checkpoint was made."""
    after: JournalState
    """The journal without its damaged lines."""


class DamageRecord(Record):
    """The contents of ``damage.json``."""

    accepted: list[AcceptedDamage]


DAMAGE = StateKind(
    "a record of accepted damage", DamageRecord, "restore it, or remove it to forget what it says"
)
"""Kind of the file ``damage.json``."""


class JournalDamage(NamedTuple):
    """A journal that is not as the checkpoint knows it."""

    name: str
    """Its name in the state of the checkpoint."""
    problem: str
    seal: Seal


def read_accepted(run: RunDir) -> list[AcceptedDamage]:
    """All damage that was accepted in the run."""
    if not run.damage.exists():
        return []
    contents = read_state(run.damage, DAMAGE)
    return [AcceptedDamage.model_validate(entry) for entry in contents["accepted"]]


def with_accepted(run: RunDir, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a checkpoint, with journals as they are since their damage was accepted."""
    seals: dict[str, Seal] = {}
    for entry in read_accepted(run):
        before = seals.get(entry.journal, _known_seal(state, entry.journal))
        if before == Seal(**entry.before.model_dump()):
            seals[entry.journal] = Seal(**entry.after.model_dump())
    return with_seals(state, seals) if seals else dict(state)


def damaged_journals(run: RunDir, state: Mapping[str, Any]) -> list[JournalDamage]:
    """The journals that differ from what they were at the checkpoint."""
    found: list[JournalDamage] = []
    for name in run.journals:
        problem = _problem(run, name, state)
        if problem is not None:
            found.append(JournalDamage(name, problem, _known_seal(state, name)))
    return found


def require_journals(run: RunDir, damaged: Iterable[JournalDamage]) -> None:
    """Raise ``CheckpointError`` for the first damaged journal."""
    for damage in damaged:
        raise CheckpointError(
            f"{damage.problem}; restore the file, resume from an older checkpoint, or go on "
            f"without what is damaged: grpo-cl train --resume_from {run.root} --accept_damage"
        )


def accept(
    run: RunDir, state: Mapping[str, Any], damaged: Iterable[JournalDamage]
) -> dict[str, Any]:
    """Go on without the damaged lines: the state of the checkpoint with the repaired journals."""
    accepted = read_accepted(run)
    seals: dict[str, Seal] = {}
    for damage in damaged:
        journal = run.journals[damage.name]
        with writing(run.damaged_dir):
            run.damaged_dir.mkdir(exist_ok=True)
        number = 1 + len(list(run.damaged_dir.iterdir()))
        aside = run.damaged_dir / f"{number}_{journal.name}"
        repaired = repair(journal, damage.seal, aside=aside)
        seals[damage.name] = repaired.seal
        accepted.append(
            AcceptedDamage(
                step=state["global_step"],
                journal=damage.name,
                problem=damage.problem,
                lost=repaired.lost,
                moved_to=str(aside.relative_to(run.root)) if aside.exists() else None,
                before=JournalState(**damage.seal._asdict()),
                after=JournalState(**repaired.seal._asdict()),
            )
        )
    sync_folder(run.root)
    write_state(run.damage, DAMAGE, {"accepted": [entry.model_dump() for entry in accepted]})
    return with_seals(state, seals)


def damage_remarks(run: RunDir) -> list[str]:
    """One sentence for each accepted damage, and for each journal that is damaged now."""
    remarks = [
        f"From step {entry.step} on the run goes on without damaged data (accept_damage): "
        f"{entry.problem}; {_lost(entry)}."
        for entry in read_accepted(run)
    ]
    newest = newest_checkpoint(run.checkpoints_dir)
    state = with_accepted(run, read_checkpoint_state(CheckpointFiles(newest))) if newest else None
    for name, journal in run.journals.items():
        seal = extended_seal(journal, seal_of(state, name) if state else None)
        if seal is not None and (problem := find_damage(journal, seal)):
            remarks.append(f"{problem}.")
    if problem := changed_file(run.config):
        remarks.append(f"{problem}.")
    return remarks


def _problem(run: RunDir, name: str, state: Mapping[str, Any]) -> str | None:
    journal, seal = run.journals[name], seal_of(state, name)
    if seal is not None:
        return find_damage(journal, seal)
    try:
        require_offset(journal, state["offsets"][name])
    except CheckpointError as error:
        return str(error).partition(";")[0]
    return None


def _known_seal(state: Mapping[str, Any], name: str) -> Seal:
    """The seal of a journal; of one without checksums, only its size."""
    return seal_of(state, name) or Seal(state["offsets"][name], 0, "")


def _lost(entry: AcceptedDamage) -> str:
    count = f"{entry.lost} of its lines" if entry.lost else "an unknown number of its lines"
    lost = f"{count} can no longer be read"
    return f"{lost}, and the damaged file is {entry.moved_to}" if entry.moved_to else lost
