"""The table of benchmarks/fallback_cost.py."""

import pytest

from fallback_cost import Measured, cells, main

LLAMA = Measured(fused_decode=2.0, decode=5.0, fused=1.0, packed=1.5, padded=4.0)


def test_a_fused_model_is_compared_with_its_own_passes() -> None:
    passes = ("Llama", "packed", "fused", "fused")
    assert cells("Llama", LLAMA, LLAMA, 100) == (
        *(*passes, "50", "20", "2.50"),
        *("1.000", "1.500", "4.000", "4.00"),
    )


def test_a_model_that_falls_back_is_compared_with_a_fused_one() -> None:
    padded = Measured(fused_decode=None, decode=8.0, fused=None, packed=None, padded=6.0)
    assert cells("Gemma 3", padded, LLAMA, 100) == (
        *("Gemma 3", "padded", "of the model", "of the model", "12", "12", "4.00"),
        *("6.000", "–", "6.000", "6.00"),
    )
    packed = padded._replace(packed=3.0)
    assert cells("Gemma", packed, LLAMA, 100)[-4:] == ("3.000", "3.000", "6.000", "3.00")
    assert cells("Gemma", packed, packed, 100)[-1] == "–"


def test_sequences_longer_than_a_window_are_measured_in_padded_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--device", "cpu", "--dry", "--repeats", "1", "--only", "Mistral"])
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "\t" in line]
    passes = {row[0]: row[1:4] for row in lines[1:]}
    assert passes == {
        "Mistral": ["packed", "of the model", "of the model"],
        "Mistral, sliding window": ["padded", "of the model", "of the model"],
    }
