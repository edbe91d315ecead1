"""Links between the pages of the documentation lead somewhere, and its options exist."""

import re
from pathlib import Path

import pytest

from grpo_cl.cli.options import fields
from paths import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(#[^)\s]*)?\)")
OPTION = re.compile(r"--([a-z]+\.[a-z_.]*[a-z_])")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {f"#{heading.replace(' ', '-')}" for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_has_a_target(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{path} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{path} has no heading {anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_with_a_section_is_a_setting(page: Path) -> None:
    known = [name for name, _ in fields()]
    sections = {name.partition(".")[0] for name in known}
    for option in OPTION.findall(page.read_text()):
        if option.partition(".")[0] not in sections:
            continue  # an option of another program
        # A mapping, such as tasks.difficulty, has keys of the user's choice.
        assert any(f"{option}.".startswith(f"{name}.") for name in known), option
