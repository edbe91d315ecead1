import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from browser_checks import LOW_CONTRAST
from grpo_cl.errors import ConfigError
from grpo_cl.report.reward_parts import gold_actions, reward_parts, reward_reason
from grpo_cl.report.viewer import episode_fragment, viewer_page, write_viewer
from grpo_cl.runs.layout import RunDir
from grpo_cl.types import Termination
from html_pages import PAYLOADS, Page, page_data
from viewed_runs import episode, make_task, write_viewed_run


def test_a_fragment_names_domain_task_and_stages():
    assert episode_fragment("airline", "3", 1) == "#airline/3/1"
    assert episode_fragment("air line", "[a]/b?#", 0, 2) == "#air%20line/%5Ba%5D%2Fb%3F%23/0,2"
    assert episode_fragment("airline", "3") == "#airline/3"


def test_a_component_says_why_it_was_missed():
    scored = episode(make_task("shop", "1"), "W2", "Done.")
    parts = {part.name: part for part in reward_parts(scored.trajectory.task, scored.reward)}
    assert parts["DB"].why.endswith("as the gold actions leave it: 0% of the changes agree")
    assert parts["COMMUNICATE"].why == "0 of 1 were said; not: '42'"
    assert parts["ACTION"].why == "0 of 1 gold actions were called; not: cancel"
    assert [part.counts for part in parts.values()] == [True, True, False]


def test_a_gold_action_with_other_arguments_is_told_from_one_that_was_not_called():
    task = make_task("shop", "1")
    calls = episode(task, "W2").trajectory.tool_calls
    missed = episode(task, "W2").reward
    assert [action.state for action in gold_actions(task, missed, calls)] == ["other arguments"]
    assert [action.state for action in gold_actions(task, missed, calls[:1])] == ["not called"]
    solved = episode(task, "W1")
    found = gold_actions(task, solved.reward, solved.trajectory.tool_calls)
    assert [action.state for action in found] == ["called"]


def test_an_episode_that_was_cut_short_says_so():
    scored = episode(make_task("shop", "1"), "W1")
    short = scored.trajectory.model_copy(update={"termination": Termination.MAX_STEPS})
    assert "rollout.max_steps was reached" in reward_reason(short, scored.reward)
    assert not reward_reason(*scored)


def test_a_solo_reply_without_a_tool_call_is_the_reason_of_the_reward():
    trajectory, reward = episode(make_task("shop", "1"), "W1")
    failed = reward.model_copy(update={"value": 0.0, "reason": "the episode ended by agent_error"})
    for is_solo, why in ((True, "no tool call that could be parsed"), (False, "reply was empty")):
        update = {"termination": Termination.AGENT_ERROR, "solo": is_solo}
        assert why in reward_reason(trajectory.model_copy(update=update), failed)


def test_a_task_that_was_forgotten_is_compared_with_when_it_was_learned(tmp_path: Path):
    data = page_data(viewer_page(write_viewed_run(tmp_path)))
    tasks = {(task["domain"], task["id"]): task for task in data["tasks"]}
    assert tasks["shop", "lost"]["change"] == "lost"
    assert tasks["shop", "lost"]["compare"] == [[1, 0], [2, 0]]
    assert tasks["shop", "kept"]["change"] == "same"
    # The last domain was just learned: it is compared with the start.
    assert tasks["bank", "lost"]["change"] == "gained"
    assert tasks["bank", "lost"]["compare"] == [[0, 0], [2, 0]]
    labels = [stage["label"] for stage in data["stages"]]
    assert labels == ["before training", "after shop", "after bank"]


def test_the_page_loads_nothing_and_runs_one_script(tmp_path: Path):
    page = viewer_page(write_viewed_run(tmp_path))
    parsed = Page(page)
    assert not parsed.tags & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert not any(
        name in ("href", "src") or name.startswith("on") for name, _ in parsed.attributes
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]


def test_the_same_episodes_give_the_same_page(tmp_path: Path):
    write_viewed_run(tmp_path)
    first = write_viewer(tmp_path).read_bytes()
    assert write_viewer(tmp_path, tmp_path / "again.html").read_bytes() == first


def test_a_name_that_looks_like_a_placeholder_stays_as_it_is(tmp_path: Path):
    root = tmp_path / "{{script}}"
    assert "<title>{{script}}: episodes</title>" in viewer_page(write_viewed_run(root))


def test_a_run_without_episodes_says_how_they_are_kept(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"logging\.keep_evaluation_episodes above 0"):
        viewer_page(tmp_path)


def test_secrets_of_the_configuration_are_not_on_the_page(tmp_path: Path):
    write_viewed_run(tmp_path)
    config = json.dumps({"model_name_or_path": "https://user:CANARY@host/model"})
    RunDir(tmp_path).config.write_text(config)
    assert "CANARY" not in json.dumps(page_data(viewer_page(tmp_path)))


class Viewer:
    """The page in a browser."""

    def __init__(self, browser: Browser, file: Path) -> None:
        self.browser, self.file = browser, file

    def show(self, fragment: str = "", *, width: int = 1280, scheme: str = "light") -> None:
        self.browser.call("Page.navigate", url="about:blank")
        self.browser.show(self.file.as_uri() + fragment, width=width, scheme=scheme)
        self.wait("document.documentElement.dataset.ready === 'true'")

    def wait(self, condition: str) -> None:
        """Wait for a condition on the page; after a minute it is not met."""
        answer = self.browser.call(
            "Runtime.evaluate",
            expression=f"""new Promise((done) => {{
                const check = (left) => {{
                    if (({condition}) || !left) done(left > 0);
                    else setTimeout(check, 10, left - 1);
                }};
                check(6000);
            }})""",
            awaitPromise=True,
            returnByValue=True,
        )
        assert answer["result"]["value"] is True

    def press(self, key: str) -> None:
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
        code = {"Enter": 13}.get(key, 0)
        given = {"text": text} if text else {}
        self.browser.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **given
        )
        self.browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def text(self, selector: str) -> str:
        return self.browser.value(f"document.querySelector({selector!r})?.innerText ?? ''")

    def count(self, selector: str) -> int:
        return self.browser.value(f"document.querySelectorAll({selector!r}).length")

    @property
    def fragment(self) -> str:
        return self.browser.value("location.hash")

    def problems(self) -> list[dict[str, Any]]:
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for method in methods for event in self.browser.events_of(method)]


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder = tmp_path_factory.mktemp("viewer")
    run = write_viewed_run(folder / "run", payloads=(*PAYLOADS, "tx\u202egpj\x07"))
    with Browser(folder / "profile") as browser:
        yield Viewer(browser, write_viewer(run))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_every_view_without_errors(viewer: Viewer, width: int, scheme: str):
    for fragment in ("", "#shop/lost/1", "#shop/lost", "#shop/kept/0,2", "#no/such/1", "#%/%/%"):
        viewer.show(fragment, width=width, scheme=scheme)
        assert viewer.problems() == []
        requests = viewer.browser.events_of("Network.requestWillBeSent")
        assert [sent["request"]["url"].partition("#")[0] for sent in requests] == [
            viewer.file.as_uri()
        ]
        assert viewer.browser.value("document.documentElement.scrollWidth") <= width
        assert viewer.browser.value(LOW_CONTRAST) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_a_lost_task_is_listed_with_its_domain(viewer: Viewer, width: int):
    viewer.show(width=width)
    assert viewer.text(".changes .where") == "shop"
    assert "since its domain was trained on" in viewer.text("#detail .place")


@pytest.mark.slow
def test_an_episode_shows_ticket_reward_parts_gold_actions_and_messages(viewer: Viewer):
    viewer.show("#shop/lost/2")
    text = viewer.text("#detail")
    for words in (
        "Cancel the order.",
        "after bank",
        "✕ failure",
        "the database does not end as the gold actions leave it",
        "0 of 1 called",
        'cancel(order="W2")',
        "You get 42 back.",
        "Agent ends the episode",
    ):
        assert words in text
    assert viewer.count(".msg.tool details:not([open])") == 1  # the long result


@pytest.mark.slow
def test_before_and_after_stand_side_by_side_with_the_first_difference_marked(viewer: Viewer):
    viewer.show("#shop/lost")
    assert "after shop → after bank" in viewer.text(".place")
    assert "The first 2 messages are the same" in viewer.text(".run")
    first = viewer.text("#first-difference")
    assert 'cancel(order="W1")' in first and 'cancel(order="W2")' in first
    marks = "[...document.querySelectorAll('#first-difference mark')].map(m => m.innerText)"
    assert viewer.browser.value(marks) == ["W1", "W2"]


@pytest.mark.slow
def test_filters_leave_the_tasks_that_match_and_are_in_the_address(viewer: Viewer):
    def listed(fragment: str) -> list[str]:
        viewer.show(fragment)
        names = "[...document.querySelectorAll('#tables .name .rest')].map(n => n.innerText)"
        return viewer.browser.value(names)

    both = ["kept", "lost"]
    assert sorted(listed("#?text=you+get")) == sorted([*both, *both])
    assert listed("#?domain=shop&change=lost") == ["lost"]
    assert sorted(listed("#?domain=shop&stage=1&outcome=success")) == both
    assert listed("#?domain=shop&stage=2&min=1") == ["kept"]
    assert "kept" not in listed("#?domain=bank&part=-DB")
    assert viewer.text("#active") == " · 2 active"
    viewer.browser.value("document.getElementById('f-text').focus()")
    viewer.press("y")
    viewer.wait("location.hash.includes('text=y')")


@pytest.mark.slow
def test_the_table_is_used_with_the_keyboard(viewer: Viewer):
    viewer.show()
    viewer.browser.value("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowRight", "Enter"):
        viewer.press(key)
    viewer.wait("location.hash === '#shop/kept/1'")
    viewer.press("k")
    viewer.wait("location.hash === '#shop/lost/1'")
    viewer.press("c")
    viewer.wait("location.hash === '#shop/lost/1,2'")
    viewer.press("/")
    viewer.wait("document.activeElement.id === 'f-text'")
    viewer.press("Escape")
    viewer.press("Escape")
    viewer.wait("location.hash === '#'  || location.hash === ''")
    assert viewer.problems() == []


@pytest.mark.slow
@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_text_of_tasks_and_models_stays_text(viewer: Viewer, payload: str):
    viewer.show(episode_fragment("shop", payload, 1))
    assert payload in viewer.text("#detail h2")
    chat = viewer.text(".chat")
    assert f"cancel(order={json.dumps(payload)})" in chat and f"{payload} after stage 1" in chat
    viewer.show(episode_fragment("shop", payload, 0, 2))
    assert viewer.browser.value("document.title") == "run: episodes"
    assert viewer.count("main :is(script, img, iframe, svg, [onerror])") == 0
    assert viewer.problems() == []


@pytest.mark.slow
def test_invisible_characters_are_shown_as_such(viewer: Viewer):
    viewer.show(episode_fragment("shop", "tx\u202egpj\x07", 1))
    assert viewer.text("#detail h2") == "tx�gpj�"


@pytest.mark.slow
def test_at_400_px_the_episode_replaces_the_table_and_a_button_leads_back(viewer: Viewer):
    viewer.show("#shop/lost/1", width=400)
    assert viewer.browser.value("document.getElementById('tasks').offsetHeight") == 0
    viewer.browser.value("document.querySelector('.back').click()")
    viewer.wait("document.getElementById('tasks').offsetHeight > 0")
