"""What the commands are parsed with."""

import argparse


class Parser(argparse.ArgumentParser):
    """A parser that guesses no options."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options, allow_abbrev=False)  # type: ignore[arg-type]

    def add(self, *names: str, **options: object) -> None:
        """An option that may be spelled with dashes too."""
        dashed = [name.replace("_", "-") for name in names if "_" in name.lstrip("-")]
        self.add_argument(*names, *dashed, **options)  # type: ignore[arg-type]


def command(module: str, name: str):  # noqa: ANN201
    """A function that imports ``grpo_cl.cli.MODULE`` when it is called, and calls its NAME."""

    def run(arguments: argparse.Namespace) -> int:
        from importlib import import_module

        return getattr(import_module(f"grpo_cl.cli.{module}"), name)(arguments)

    return run
