"""Questions are answered once for all processes, and only by what is right."""

import pytest

from symdnn.config import config
from symdnn.tuning import blocked, store
from symdnn.tuning.attempts import Attempt, Bench
from symdnn.tuning.question import ON_BLOCK_LIST, ChoiceCache, Question, answer, plain


class Letters(Question):
    family = "letters"

    def __init__(self, ms, key=None, known=None, deterministic=False):
        self.ms, self.asked, self.said = ms, 0, []
        self.known = ms if known is None else known
        self.key = ({"question": "which"} if key is None else key) or None
        self.deterministic = deterministic

    def measured(self):
        self.asked += 1
        table = [Attempt(c, ms, problem="" if ms else "it is wrong") for c, ms in self.ms.items()]
        return table, ""

    def record(self, best):
        return {"name": best.candidate, "ms": best.ms}

    def revived(self, record):
        return Attempt(record["name"], record["ms"]) if record["name"] in self.known else None

    def refused(self, reasons):
        self.said += reasons

    def not_allowed(self, reason):
        self.said.append(reason)


@pytest.fixture(autouse=True)
def folder(tmp_path):
    blocked.forget()
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path)}):
        yield tmp_path
    blocked.forget()


def test_another_process_measures_nothing():
    first, second = Letters({"a": 2.0, "b": 1.0}), Letters({"a": 2.0, "b": 1.0})
    made, found = answer(first), answer(second)
    assert (made.attempt.candidate, found.attempt.candidate) == ("b", "b")
    assert (first.asked, second.asked) == (1, 0)
    assert (made.source, found.source) == (
        "fastest of 2 measured", "fastest when it was measured before",
    )  # fmt: skip


def test_what_the_library_does_not_take_any_more_is_measured_anew():
    answer(Letters({"b": 1.0}))
    again = Letters({"a": 2.0}, known={"a"})
    assert answer(again).attempt.candidate == "a"
    assert again.asked == 1
    assert answer(Letters({"a": 5.0})).attempt.ms == 2.0  # it was kept


def test_the_first_that_is_kept_wins(monkeypatch):
    slow = Letters({"a": 2.0, "b": 1.0})
    monkeypatch.setattr(store, "recall", lambda key, real=store.recall: None)
    store.remember({"family": "letters", "question": "which"}, {"name": "a", "ms": 2.0})
    monkeypatch.undo()
    real = slow.measured

    def meanwhile():
        store.remember({"family": "letters", "question": "which"}, {"name": "a", "ms": 2.0})
        return real()

    slow.measured = meanwhile
    found = answer(slow)
    assert found.attempt.candidate == "a"


def test_other_families_and_keys_are_other_questions():
    class Others(Letters):
        family = "others"

    for question in (Letters({"a": 1.0}), Others({"a": 1.0}), Letters({"a": 1.0}, {"of": 2})):
        answer(question)
        assert question.asked == 1


def test_what_cannot_be_kept_is_measured_each_time_unless_all_must_agree():
    unkept = Letters({"a": 1.0}, key={})
    for _ in range(2):
        assert answer(unkept).attempt.candidate == "a"
    assert unkept.asked == 2
    strict = Letters({"a": 1.0}, key={}, deterministic=True)
    assert answer(strict) is None
    assert (strict.asked, "tuning_cache is off" in strict.said[0]) == (0, True)
    with config.change_flags({"dnn.conv.tuning_cache": "off"}):
        assert answer(Letters({"a": 1.0}, deterministic=True)) is None
        assert answer(Letters({"a": 1.0})).attempt.candidate == "a"


def test_where_nothing_is_right_there_is_no_answer_and_no_record(folder):
    wrong = Letters({"a": None, "b": None})
    assert answer(wrong) is None
    assert wrong.said == ["a: it is wrong", "b: it is wrong"]
    assert list(folder.rglob("*.json")) == []


def test_choices_of_a_process_are_bounded():
    made = []
    kept = ChoiceCache(most=2)
    for key in "ababcac":
        kept.get(key, lambda key=key: made.append(key) or key)
    assert made == ["a", "b", "c", "a"]
    assert kept.values() == ["a", "c"]
    kept.clear()
    assert kept.values() == []


def test_plain_is_what_json_gives_back():
    assert plain({"a": (1, (2, [3]))}) == {"a": [1, [2, [3]]]}


# --- export and import ----------------------------------------------------------------------------


def test_records_go_to_another_machine(folder, tmp_path_factory, capsys):
    from symdnn.cli import main

    answer(Letters({"a": 2.0, "b": 1.0}, {"gpu": "card", "question": [1, 2]}))
    answer(Letters({"c": 4.0}, {"gpu": "card", "question": "x"}))
    there = tmp_path_factory.mktemp("there")
    assert main(["tune", "--export", str(there / "records.txt")]) == 0
    assert main(["tune"]) == 0
    told = capsys.readouterr().out
    assert "exported 2 choices" in told
    assert "gpu card\n" in told
    assert "  letters: b, 1 ms; question=1x2" in told
    with config.change_flags({"dnn.conv.tuning_cache": str(there / "store")}):
        assert main(["tune", "--import", str(there / "records.txt")]) == 0
        assert main(["tune", "--import", str(there / "records.txt")]) == 0
        told = capsys.readouterr().out
        assert "2 new" in told
        assert "2 known already" in told
        moved = Letters({"a": 2.0, "b": 1.0}, {"gpu": "card", "question": [1, 2]})
        assert answer(moved).attempt.candidate == "b"
        assert moved.asked == 0


def test_damaged_lines_are_not_taken(folder, tmp_path, capsys):
    from symdnn.cli import main

    answer(Letters({"a": 2.0}))
    file = tmp_path / "records.txt"
    (line,) = store.exported()
    file.write_text(line.replace("2.0", "1.0") + "\n[]\n{}\nnothing\n" + line + "\n")
    assert main(["tune", "--import", str(file)]) == 1
    assert "1 known already, 4 damaged" in capsys.readouterr().out
    assert main(["tune", "--import", str(tmp_path / "none")]) == 2


class Checked(Letters):
    """Candidates of which ``errors`` says how wrong they are."""

    def __init__(self, ms, errors, **more):
        super().__init__(ms, **more)
        self.errors = errors
        self.fault = {"library": "abc", "version": 1, "arch": "x", "op": "which"}

    def measured(self):
        self.asked += 1
        return [
            Attempt(c, None, self.errors[c], problem=f"its result is off by {self.errors[c]}")
            if c in self.errors else Attempt(c, ms, 0.0)
            for c, ms in self.ms.items() if not self.is_blocked(c)
        ], ""  # fmt: skip


def test_what_is_measured_to_be_wrong_is_blocked():
    first = Checked({"a": 2.0, "b": 1.0, "c": 3.0}, {"b": 0.5})
    assert answer(first).attempt.candidate == "a"
    (entry,) = blocked.entries()
    assert (entry.name, entry.error) == ("b", 0.5)
    assert "b: its result is off by 0.5 (library abc, version 1, arch x; op=which)" in str(entry)
    blocked.forget()  # another process knows it by the file
    assert first.is_blocked("b")
    assert not first.is_blocked("a")
    with config.change_flags({"dnn.conv.tuning_cache": "off"}):
        assert not first.is_blocked("b")


def test_where_most_disagree_nothing_is_blocked():
    """The first candidate, with which the others are compared, may itself be the wrong one."""
    answer(Checked({"a": 2.0, "b": 1.0, "c": 3.0}, {"b": 0.5, "c": 0.5}))
    assert list(blocked.entries()) == []


def test_without_a_store_the_process_knows():
    with config.change_flags({"dnn.conv.tuning_cache": "off"}):
        blocked.add({"library": "abc"}, "a", "a", float("inf"), "wrong")
        assert blocked.error_of({"library": "abc"}, "a") > 1e299
        assert blocked.error_of({"library": "abd"}, "a") is None
        assert [e.name for e in blocked.entries()] == ["a"]
    blocked.forget()


def test_entries_are_exported_and_imported(tmp_path):
    blocked.add({"library": "abc"}, ["legacy", 1, False], "small", 0.5, "wrong")
    lines = list(store.exported())
    blocked.forget()
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path / "other")}):
        assert blocked.error_of({"library": "abc"}, ["legacy", 1, False]) is None
        assert [store.imported(line) for line in lines] == ["new"]
        assert blocked.error_of({"library": "abc"}, ["legacy", 1, False]) == 0.5


class Listed(Letters):
    fault = {"library": "letters", "version": 1}


class Quick(Bench):
    def check(self, candidate, good_ms):
        return 0.0, 0.0

    def time(self, candidate, good_ms):
        return 1.0


def test_what_is_blocked_is_not_run_and_stays_in_the_table():
    question = Listed({"a": 1.0, "b": 1.0})
    question.block(Attempt("a", error=0.5, problem="it is off"))
    first, last = question.attempts(Quick(), "ab")
    assert (first.candidate, first.usable) == ("b", True)
    assert (last.candidate, last.problem) == ("a", ON_BLOCK_LIST)
    assert not Letters({"a": 1.0}).is_blocked("a")  # a family without a block list
