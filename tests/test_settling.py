import gc

from grpo_cl.trainer.settling import settle


def test_what_was_there_is_collected_no_more_and_what_comes_is() -> None:
    class Knot:
        def __init__(self) -> None:
            self.own = self

    count = gc.get_freeze_count()
    old = Knot()
    settle()
    try:
        assert gc.get_freeze_count() > count
        assert not any(one is old for one in gc.get_objects())
        Knot()
        assert gc.collect() > 0
    finally:
        gc.unfreeze()
