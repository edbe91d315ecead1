import pytest

from grpo_cl.cli import main
from grpo_cl.cli.doctor import Gpu, parse_gpus, what_fits


def test_the_machine_and_the_installed_extras_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    states = {line.split()[1]: line.split()[0] for line in lines if len(line.split()) > 1}
    assert states["python"] == "ok"
    assert states["train"] == "ok"
    assert {"cpu", "disk", "gpu", "vllm", "wandb"} <= set(states)
    assert any("torch " in line for line in lines)
    assert "what fits:" in lines


def test_gpus_are_read_from_the_table_of_the_driver() -> None:
    assert parse_gpus("NVIDIA H200, 143771\nTesla, T4, 15360\n") == [
        Gpu("NVIDIA H200", 143771 / 1024),
        Gpu("Tesla, T4", 15.0),
    ]
    assert parse_gpus("") == []


def test_models_fit_by_the_memory_of_the_gpu() -> None:
    small, large = (" ".join(what_fits([Gpu("any", memory)])) for memory in (8.0, 400.0))
    assert "qwen2.5-7b" in small
    assert small.count("does not fit") == 8
    assert "does not fit" not in large
    assert "larger models need a GPU" in " ".join(what_fits([]))
