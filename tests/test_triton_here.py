import logging
from subprocess import CalledProcessError

import pytest

from grpo_cl.policy.triton_here import has_triton, works

pytest.importorskip("triton")


def test_where_there_is_no_gpu_triton_is_enough() -> None:
    assert has_triton()


@pytest.mark.parametrize(
    "error", [RuntimeError("Failed to find C compiler."), CalledProcessError(1, ["gcc", "main.c"])]
)
def test_a_machine_without_a_compiler_is_told_and_goes_on(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def trial() -> None:
        raise error

    with caplog.at_level(logging.WARNING):
        assert not works(trial)
    assert str(error) in caplog.text
    assert "needs a C compiler" in caplog.text


def test_another_fault_is_not_hidden() -> None:
    def trial() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        works(trial)
