"""The store: gathers, failures, time limits; between threads, over real connections."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from symdnn.config import config
from symdnn.errors import CollectiveMismatch, CollectiveTimeout, PeerFailed
from symdnn.world import store as store_module
from symdnn.world.store import connect, serve

KEY = b"a secret"


@pytest.fixture
def stores():
    """Those of three ranks."""
    first, port = serve(3, KEY)
    made = [first, *(connect(r, "127.0.0.1", port, KEY, 5.0, 3) for r in (1, 2))]
    yield made
    for store in made[::-1]:
        store.leave()
    first.close(1.0)


def in_threads(*functions):
    """Their results, or errors."""
    found = [None] * len(functions)

    def run(i):
        try:
            found[i] = functions[i]()
        except Exception as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert not any(t.is_alive() for t in threads)
    return found


def test_a_gather_gives_all_values_in_order_to_all(stores):
    for _ in range(2):  # a name may be used again once everybody has read
        calls = [lambda s=s: s.gather("x", f"of {s.rank}", [2, 0, 1], 5.0) for s in stores]
        assert in_threads(*calls) == [["of 2", "of 0", "of 1"]] * 3
    assert not stores[0]._hub._gathers


def test_groups_gather_apart(stores):
    calls = [lambda s=s: s.gather("pair", str(s.rank), [0, 2], 5.0) for s in (stores[0], stores[2])]
    assert in_threads(*calls) == [["0", "2"]] * 2


def test_a_missing_rank_is_named_after_the_limit(stores):
    start = time.monotonic()
    found = in_threads(*[lambda s=s: s.gather("x", "", [0, 1, 2], 0.3) for s in stores[:2]])
    assert all(isinstance(e, CollectiveTimeout) and "rank 2 did not come" in str(e) for e in found)
    assert time.monotonic() - start < 5


def waiting(store, texts, pause=0.05):
    """Say in turn what a rank waits for."""
    for text in texts:
        store.status(text)
        time.sleep(pause)


def test_ranks_that_wait_for_something_else_are_told_before_the_limit(stores):
    found, *_ = in_threads(
        lambda: stores[0].gather("the comparison", "", [0, 1, 2], 30.0, 0.5),
        *(lambda s=s: waiting(s, ["all_gather number 2"] * 40) for s in stores[1:]),
    )
    assert isinstance(found, CollectiveMismatch)
    assert "rank 1 waits in all_gather number 2; rank 2 waits in all_gather" in str(found)


def test_ranks_that_gather_different_things_are_told_before_the_limit(stores):
    """Where each of them waits; all ranks, since one that computes may help others on."""

    def gathers(store, name):
        return store.gather(name, "", [0, 1, 2], 30.0, 0.5)

    start = time.monotonic()
    found = in_threads(
        lambda: gathers(stores[0], "a link"), lambda: gathers(stores[1], "a link"),
        lambda: gathers(stores[2], "measures"),
    )  # fmt: skip
    assert time.monotonic() - start < 10
    assert {type(e) for e in found} == {CollectiveMismatch}
    assert str(found[0]).startswith("rank 0 waits in a link, but rank 2 waits in measures.")
    assert "rank 0 waits in a link; rank 1 waits in a link." in str(found[2])


def test_ranks_wait_while_one_computes(stores):
    """Here rank 0 would help rank 1 on, which then comes."""

    def first():
        time.sleep(1.5)
        return stores[0].gather("a pair", "0", [0, 1], 10.0, 0.3)

    def second():
        stores[1].gather("a pair", "1", [0, 1], 10.0, 0.3)
        return stores[1].gather("another", "1", [1, 2], 10.0, 0.3)

    third = lambda: stores[2].gather("another", "2", [1, 2], 10.0, 0.3)  # noqa: E731
    assert in_threads(first, second, third) == [["0", "1"], ["1", "2"], ["1", "2"]]


@pytest.mark.parametrize("texts", [
    ["all_gather number 2"] * 4,  # it says nothing more
    [f"all_gather number {k}" for k in range(30)],  # it goes on
    ["all_gather number 2", ""] * 15,  # it computes between
], ids=["silent", "others", "computes"])  # fmt: skip
def test_a_rank_that_comes_later_is_waited_for(stores, monkeypatch, texts):
    monkeypatch.setattr(store_module, "_SILENT_S", 0.2)

    def late():
        waiting(stores[1], texts)
        time.sleep(1.0)
        return stores[1].gather("the comparison", "1", [0, 1], 10.0, 0.5)

    calls = [lambda: stores[0].gather("the comparison", "0", [0, 1], 10.0, 0.5), late]
    assert in_threads(*calls) == [["0", "1"]] * 2


def test_a_failure_ends_waits_at_once(stores):
    def fails():
        time.sleep(0.2)
        stores[2].fail("ValueError: no")

    start = time.monotonic()
    calls = [lambda s=s: s.gather("x", "", [0, 1, 2], 60.0) for s in stores[:2]]
    *found, _ = in_threads(*calls, fails)
    assert time.monotonic() - start < 10
    assert {str(e) for e in found} == {"rank 2 failed: ValueError: no"}
    assert stores[1].status("here")["failure"] == [2, "ValueError: no"]


def test_only_the_first_failure_counts(stores):
    stores[1].fail("first")
    stores[2].fail("second")
    assert stores[0].status("")["failure"] == [1, "first"]


def test_a_rank_that_leaves_and_one_whose_process_ends():
    first, port = serve(3, KEY)
    leaving, ending = (connect(r, "127.0.0.1", port, KEY, 5.0, 3) for r in (1, 2))
    leaving.leave()
    with pytest.raises(PeerFailed, match="rank 1 has ended"):
        first.gather("x", "", [0, 1], 5.0)
    ending._line.close()
    with pytest.raises(PeerFailed, match="rank 2 failed: its process ended"):
        first.gather("y", "", [0, 2], 5.0)
    first.close(1.0)


def test_rank_0_whose_process_ends():
    code = "import time; from symdnn.world.store import serve; store, port = serve(2, b'a secret')"
    command = [sys.executable, "-c", f"{code}; print(port, flush=True); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rank_0:
        other = connect(1, "127.0.0.1", int(rank_0.stdout.readline()), KEY, 5.0, 2)
        assert other.status("")["failure"] is None
        rank_0.kill()
        rank_0.wait()
        with pytest.raises(PeerFailed, match="rank 0 failed: its process ended"):
            other.status("")
        other.leave()


def test_rank_0_whose_process_does_not_answer(monkeypatch):
    code = "import time; from symdnn.world.store import serve; store, port = serve(2, b'a secret')"
    command = [sys.executable, "-c", f"{code}; print(port, flush=True); time.sleep(60)"]
    monkeypatch.setattr(store_module, "_LEAST_ANSWER_S", 0.2)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rank_0:
        other = connect(1, "127.0.0.1", int(rank_0.stdout.readline()), KEY, 5.0, 2)
        rank_0.send_signal(signal.SIGSTOP)
        with config.change_flags(**{"distributed.timeout": 0.1}):
            with pytest.raises(CollectiveTimeout, match="waited 0.2 s for an answer"):
                other.status("")
            with pytest.raises(PeerFailed, match="does not answer"):
                other.fail("an error")
            other.leave()
        rank_0.kill()


def test_strangers_are_not_let_in():
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client

    first, port = serve(2, KEY)
    with pytest.raises(AuthenticationError):
        Client(("127.0.0.1", port), authkey=b"another")
    other = connect(1, "127.0.0.1", port, KEY, 5.0, 2)
    assert other.status("")["left"] == []
    other.leave()
    first.close(1.0)


def test_nobody_listens():
    first, port = serve(1, KEY)
    first.close()
    with pytest.raises(CollectiveTimeout, match="waited 0.2 s for rank 0"):
        connect(1, "127.0.0.1", port, KEY, 0.2, 2)


def test_a_stranger_that_says_nothing_keeps_no_rank_out():
    first, port = serve(2, KEY)
    with socket.create_connection(("127.0.0.1", port)):
        other = connect(1, "127.0.0.1", port, KEY, 5.0, 2)
        assert other.status("")["left"] == []
        other.leave()
    first.close(1.0)


@pytest.mark.parametrize(("says", "found"), [
    (b"", "does not answer as a rank 0 does"), (b"SSH-2.0-a\r\n", "bad message length"),
    (None, "ends the connection|reset|Broken pipe|does not answer"),
])  # fmt: skip
def test_another_program_at_the_port_is_an_error_at_the_time_limit(says, found):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        lines, ended = [], threading.Event()

        def answer():
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    line, _ = listener.accept()
                    lines.append(line)
                    line.sendall(says or b"")
                    if says is None:
                        line.close()

        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]
        try:
            with pytest.raises(CollectiveTimeout, match=found):
                connect(1, "127.0.0.1", port, KEY, 0.6, 2)
        finally:
            ended.set()
            thread.join()
            for line in lines:
                line.close()


def test_the_rank_0_of_another_run_is_not_met():
    """It may still be ending while this run begins: the time limit says when to give up."""
    first, port = serve(2, b"another run")
    with pytest.raises(CollectiveTimeout, match="digest|does not answer"):
        connect(1, "127.0.0.1", port, KEY, 0.3, 2)
    first.close()


@pytest.mark.parametrize(("ranks", "size", "said"), [
    ((1, 1), 3, "rank 1 failed: two processes were started with this rank"),
    ((1, 2), 4, "it was started as one of 4 processes, and rank 0 as one of 3"),
    ((3, 1), 3, "rank 3 failed"),
])  # fmt: skip
def test_places_that_contradict_each_other_are_named_on_all_ranks(ranks, size, said):
    first, port = serve(3, KEY)
    others = [connect(r, "127.0.0.1", port, KEY, 5.0, size) for r in ranks]
    found = in_threads(*[lambda s=s: s.gather("x", "", [0, 1, 2], 5.0) for s in (first, *others)])
    assert all(isinstance(e, PeerFailed) and said in str(e) for e in found)
    for store in others:
        store.leave()
    first.close(1.0)


def test_one_rank_finds_a_value_for_all(stores):
    """The first that asks; the others wait for it, also those that ask later."""
    assert stores[1].claim("key", 5.0) is None

    def finds():
        time.sleep(0.2)
        stores[1].tell("key", "found")

    waiting = [lambda s=s: s.claim("key", 20.0) for s in (stores[0], stores[2])]
    assert in_threads(*waiting, finds)[:2] == ["found", "found"]
    assert stores[1].claim("key", 5.0) == "found"
    stores[2].tell("key", "another")  # one that took too long: the first stays
    assert stores[0].claim("key", 5.0) == "found"


def test_who_finds_nothing_leaves_it_to_the_next(stores):
    assert stores[1].claim("key", 5.0) is None
    stores[1].tell("key", None)
    assert stores[2].claim("key", 5.0) is None
    start = time.monotonic()
    assert stores[0].claim("key", 0.2) is None  # rank 2 takes too long: this one finds it, too
    assert time.monotonic() - start < 10
    stores[2].leave()
    assert stores[1].claim("key", 5.0) is None


def test_a_rank_that_fails_ends_the_wait_for_its_value(stores):
    assert stores[2].claim("key", 5.0) is None

    def fails():
        time.sleep(0.2)
        stores[2].fail("ValueError: no")

    found, _ = in_threads(lambda: stores[1].claim("key", 60.0), fails)
    assert str(found) == "rank 2 failed: ValueError: no"
