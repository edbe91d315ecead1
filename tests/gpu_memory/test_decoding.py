import pytest

from decoding import main


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--rows 4 --new 8", "--new 8 is not a multiple of 16: graphs decode 8 tokens at a time"),
        ("--new 0", "--new 0 is not a multiple of 16"),
        ("--rank 16", "--rank 16 adds an adapter to a model with random weights; give --shape too"),
    ],
)
def test_sizes_that_would_be_measured_wrongly_are_refused(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert reason in capsys.readouterr().err
