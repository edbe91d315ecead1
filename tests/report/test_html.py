import re

import pytest

from grpo_cl.report.html import contrast, shade

AA = 4.5


def test_the_contrast_of_black_and_white_is_21():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("score", [-0.5, *(n / 100 for n in range(101)), 1.5])
def test_numbers_of_a_heat_map_are_readable_in_both_colour_schemes(score: float):
    found = re.findall(r"rgb\((\d+), (\d+), (\d+)\)", shade(score))
    colours = [(int(red), int(green), int(blue)) for red, green, blue in found]
    light_paper, dark_paper, light_ink, dark_ink = colours
    assert contrast(light_paper, light_ink) >= AA
    assert contrast(dark_paper, dark_ink) >= AA
