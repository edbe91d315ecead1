import http.client
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from threading import Thread

import pytest
from typing_extensions import override

from grpo_cl.cli import main
from grpo_cl.cli.episode_text import Line, print_lines
from grpo_cl.config import GRPOConfig
from grpo_cl.envs import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.report.viewer_server import ViewerServer
from grpo_cl.runs.episodes import episode_line
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import Journal
from grpo_cl.types import Message, Reward, Termination, ToolCall, ToolResult, Trajectory
from viewed_runs import write_viewed_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_viewed_run(tmp_path_factory.mktemp("viewed"))


def test_an_episode_is_printed_with_ticket_calls_results_and_reward(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["view", str(run), "--task", "lost", "--domain", "shop"]) == 0
    text = capsys.readouterr().out
    for words in (
        "shop lost, after bank\n",
        "Ticket: Cancel the order.\n",
        'agent calls cancel(order="W2")\n',
        "  ↳ ✗ Cancelled.\n",
        "✗ reward 0, ended by agent_stop\n",
        "  ✗ database 0: the database does not end as the gold actions leave it",
        '  ≈ cancel(order="W1")  (other arguments)\n',
        "  1 after shop: ✓\n  2 after bank: ✗\n",
    ):
        assert words in text
    assert "\x1b" not in text


def test_a_stage_is_chosen_and_two_stages_show_what_differs(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    task = ["view", str(run), "--task", "lost", "--domain", "shop", "--stage"]
    assert main([*task, "1"]) == 0
    assert '✓ cancel(order="W1")\n' in capsys.readouterr().out
    assert main([*task, "1", "2"]) == 0
    text = capsys.readouterr().out
    assert '- agent calls cancel(order="W1")  [gold]\n+ agent calls cancel(order="W2")\n' in text
    assert '  agent calls get_order(order="W1")\n' in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--task lost", "bank, shop each have a task 'lost'; choose one with --domain"),
        ("--task last", "no episode of task 'last' was kept; did you mean 'lost'?"),
        ("--task lost --domain shop --stage 7", "--stage is one of 0 (before training), 1 (after"),
        ("--task lost --domain shop --trial 3", "and --trial at most 0"),
        ("--task lost --domain toys", "the run has no domain 'toys'; its domains: shop, bank"),
        ("--stage 1", "--stage and --domain choose an episode of --task ID"),
        ("--task lost --out page.html", "--out page.html and --task lost exclude each other"),
        ("--step 3", "has no episode of step 3; its last step is 0"),
    ],
)
def test_a_wrong_choice_is_one_sentence(
    words: str, message: str, run: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["view", str(run), *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    @override
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_and_escape_sequences_of_a_model_are_never_printed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = [Line("title\x1b]0;owned\x07", "title")]
    plain, coloured = io.StringIO(), Terminal()
    print_lines(lines, plain)
    print_lines(lines, coloured)
    assert plain.getvalue() == "title�]0;owned�\n"
    assert coloured.getvalue() == "\x1b[1mtitle�]0;owned�\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    without = Terminal()
    print_lines(lines, without)
    assert without.getvalue() == plain.getvalue()


def test_the_page_is_written_as_one_file(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["view", str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.fixture
def server() -> Iterator[ViewerServer]:
    with ViewerServer(lambda: "<p>page</p>", 0) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: ViewerServer, path: str, **headers: str) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.getheader("Content-Security-Policy")
    finally:
        connection.close()


def test_the_server_listens_on_loopback_and_has_one_page(server: ViewerServer):
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/") == (HTTPStatus.OK, "<p>page</p>", "frame-ancestors 'none'")
    assert get(server, "/../etc/passwd")[0] == HTTPStatus.NOT_FOUND


def test_a_foreign_host_name_is_refused(server: ViewerServer):
    assert get(server, "/", Host="attacker.example")[0] == HTTPStatus.BAD_REQUEST
    assert get(server, "/", Host=f"localhost:{server.server_port}")[0] == HTTPStatus.OK


def test_a_page_that_cannot_be_made_is_answered_with_the_reason():
    def page() -> str:
        raise ConfigError("the episodes are damaged")

    with ViewerServer(page, 0) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        status, text, _ = get(server, "/")
        thread.join()
    assert (status, text) == (HTTPStatus.INTERNAL_SERVER_ERROR, "the episodes are damaged")


def test_a_port_in_use_is_one_sentence(server: ViewerServer):
    with pytest.raises(ConfigError, match=f"cannot listen on port {server.server_port} of"):
        ViewerServer(lambda: "", server.server_port)


def _default_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it


def test_the_command_prints_the_address_serves_the_page_and_ends_with_ctrl_c(run: Path):
    command = [sys.executable, "-m", "grpo_cl", "view", str(run), "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=_default_interrupt
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        host, port = line.partition("http://")[2].partition("/")[0].split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", "/")
        page = connection.getresponse().read()
        connection.close()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 0
    assert host == "127.0.0.1"
    assert b"<!doctype html>" in page


def test_logs_for_inspect_have_the_episodes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from inspect_ai.log import read_eval_log  # noqa: PLC0415  # takes two seconds

    assert main(["view", str(run), "--inspect", str(tmp_path / "logs")]) == 0
    assert "6 logs written; `inspect view --log-dir" in capsys.readouterr().out
    log = read_eval_log(str(tmp_path / "logs" / "2_shop.eval"))
    assert (log.eval.task, log.eval.model) == ("shop, after bank", "tiny")
    assert log.samples is not None and log.results is not None
    assert log.results.scores[0].metrics["mean"].value == 0.5
    samples = {sample.id: sample for sample in log.samples}
    lost = samples["lost"]
    assert lost.scores is not None
    assert {name: score.value for name, score in lost.scores.items()} == {
        "reward": 0,
        "DB": 0,
        "COMMUNICATE": 1,
    }
    roles = [message.role for message in lost.messages]
    assert roles == ["user", *["assistant", "tool"] * 2, "assistant", "assistant"]
    assert lost.target == ['cancel({"order": "W1"})']


def test_the_best_and_the_worst_episode_of_a_training_step_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = RunDir(tmp_path)
    run.write_config(GRPOConfig(model_name_or_path="tabular", task_order=("toy_left",)))
    tasks = load_domain("toy_left", None).tasks("train")
    with Journal(run.trajectories_journal) as journal:
        for step, number, option in ((0, 0, "up"), (1, 2, "down"), (1, 1, "left"), (1, 1, "right")):
            call = ToolCall(id="call_0", name="choose", arguments={"option": option})
            messages = (
                Message(role="assistant", tool_calls=(call,)),
                ToolResult(content="Chosen.").message(call),
                Message(role="assistant", content="###STOP###"),
            )
            played = Trajectory(
                task=tasks[number], messages=messages, termination=Termination.AGENT_STOP, solo=True
            )
            reward = Reward(value=float(option == "left"), basis=(), basis_name="tau2")
            journal.append({"step": step} | episode_line(played, reward))
    assert main(["view", str(tmp_path), "--step", "2"]) == 0
    text = capsys.readouterr().out
    best, worst = text.split("step 2, worst of 3: ")
    assert best.startswith(f"step 2, best of 3: toy_left {tasks[1].id}\n")
    assert 'choose(option="left")' in best and "✓ reward 1" in best
    # Two are as bad; the one of the same task is the one to compare with.
    assert worst.startswith(f"toy_left {tasks[1].id}\n")
    assert 'choose(option="right")' in worst
