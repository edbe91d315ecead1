"""docs/architecture.md describes the code as it is."""

import re

from paths import ROOT

SOURCE = ROOT / "src" / "grpo_cl"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
STEP = TEXT.partition("## One training step")[2].partition("\nVariants stand")[0]


def named_paths(text: str) -> set[str]:
    """Paths in backticks, except the placeholders of files to write."""
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    return {path for path in paths if "NAME" not in path}


def test_every_path_that_the_page_names_exists() -> None:
    paths = named_paths(TEXT)
    assert len(paths) > 40
    roots = (SOURCE, SOURCE / "policy", ROOT)
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


def test_every_room_is_on_the_page() -> None:
    rooms = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in SOURCE.iterdir()
        if not path.name.startswith("__") and path.name not in {"py.typed", "train.py"}
    }
    assert rooms <= named_paths(TEXT)


def test_one_step_is_followed_through_at_most_30_files() -> None:
    files = re.findall(r"^\| \d? ?\| `([\w/]+\.py)` \|", STEP, re.MULTILINE)
    assert len(files) == len(set(files))
    assert 20 <= len(files) <= 30


def test_every_call_that_the_step_names_is_defined_in_its_file() -> None:
    rows = re.findall(r"^\| \d? ?\| `([\w/]+\.py)` \| ([^|]*) \|", STEP, re.MULTILINE)
    for file, calls in rows:
        source = (SOURCE / file).read_text()
        for call in re.findall(r"`([\w.]+)`", calls):
            for name in call.split("."):
                assert re.search(rf"(def|class) {name}\b", source), f"{file} has no {name}"


def test_readme_links_to_the_page_and_the_example() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "docs/architecture.md" in readme
    assert "examples/minimal_grpo.py" in readme
