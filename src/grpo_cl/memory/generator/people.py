"""The people of an instance; whoever is in a test instance is in no training instance."""

from random import Random

from grpo_cl.errors import ConfigError

TEST_SHARE = 5
"""One name in this many belongs to the test half."""

_FIRST = (
    "Ava Noah Mia Liam Zoe Omar Ines Raj Yuki Lena Paulo Greta Tariq Nadia Felix Sara Bruno Hana "
    "Ivan Chloe Anouk Boris Clara Dario Elif Farid Gwen Hugo Irina Jonas Kenji Laila Marco Nils "
    "Olga Petra Quinn Rosa Sven Tessa Umar Vera Wanda Xenia Yusuf Zahra Amir Bianca Cyril Daphne "
    "Emil Freya Goran Heidi Isaac Jelena Kofi Livia Milan Nora"
)
_LAST = "Lind Moreno Okafor Petrov Silva Tanaka Varga Weber Yilmaz Zeman"


def people(rng: Random, *, count: int, namesakes: int, split: str) -> list[str]:
    """``count`` people; with namesakes all have surnames, and so many share a first name."""
    if split not in {"train", "test"}:
        raise ConfigError(f"a generator makes 'train' or 'test' instances, not {split!r}")
    is_test = split == "test"
    pool = [name for n, name in enumerate(_FIRST.split()) if (n % TEST_SHARE == 0) == is_test]
    if count - namesakes > len(pool):
        raise ConfigError(
            f"{count} people with {namesakes} namesakes need {count - namesakes} first names; "
            f"{split} has {len(pool)}. Lower `people` or raise `namesakes`"
        )
    if 2 * namesakes > count:
        raise ConfigError(
            f"{namesakes} namesakes of {count} people need as many others to share names with; "
            "lower `namesakes` or raise `people`"
        )
    first = rng.sample(pool, count - namesakes)
    if not namesakes:
        return first
    first += rng.sample(first, namesakes)
    surnames = _LAST.split()
    last = rng.sample(surnames, len(surnames))
    return [f"{name} {last[n % len(last)]}" for n, name in enumerate(first)]
