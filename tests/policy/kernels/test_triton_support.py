import logging
from subprocess import CalledProcessError

import pytest

from grpo_cl.policy.kernels.triton_support import can_run, has_triton

pytest.importorskip("triton")


def test_without_a_gpu_an_installed_triton_is_enough() -> None:
    assert has_triton()


@pytest.mark.parametrize(
    "error", [RuntimeError("Failed to find C compiler."), CalledProcessError(1, ["gcc", "main.c"])]
)
def test_a_missing_compiler_is_logged_and_triton_is_not_used(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def probe() -> None:
        raise error

    with caplog.at_level(logging.WARNING):
        assert not can_run(probe)
    assert str(error) in caplog.text
    assert "needs a C compiler" in caplog.text


def test_other_errors_are_raised() -> None:
    def probe() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        can_run(probe)
