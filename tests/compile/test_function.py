"""``function``: inputs, outputs, updates, stored values, copies."""

import copy

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import In, Out
from symdnn.errors import InputError


def test_outputs_come_in_the_structure_asked_for():
    x = T.dscalar("x")
    assert symdnn.function([x], x + 1)(1) == 2
    assert symdnn.function([x], [x + 1])(1) == [2]
    assert symdnn.function([x], (x, x + 1))(1) == [1, 2]
    assert symdnn.function([x], {"b": x, "a": x + 1})(1) == {"b": 1, "a": 2}
    assert symdnn.function([x], None, on_unused_input="ignore")(1) == []
    assert symdnn.function([x], [], on_unused_input="ignore")(1) == []
    assert symdnn.function([], [T.constant(2.5), 7])() == [2.5, 7]


def test_calls_by_keyword():
    x, y = T.dscalar("x"), T.dscalar("y")
    f = symdnn.function([x, In(y, value=3.0, name="why")], x * 10 + y)
    assert f(1) == 13
    assert f(x=1, why=2) == 12
    assert f(1, why=2) == 12
    assert f(1, 2) == 12


def test_a_default_has_the_type_of_its_input():
    x = T.fscalar("x")
    f = symdnn.function([In(x, value=0.5)], x * 2)
    assert f().dtype == np.float32
    assert f() == 1


def test_a_stored_value_is_read_and_set_by_name_variable_and_position():
    x, lr = T.dscalar("x"), T.dscalar("lr")
    f = symdnn.function([x, In(lr, value=0.1)], x * lr)
    assert f["lr"] == 0.1
    f["lr"] = 0.5
    assert f(2) == 1
    f[lr] = 1
    f.container["lr"].data = np.asarray(2.0)
    assert f[1] == 2
    assert f(2) == 4
    assert f(2, 10) == 20  # for this call only
    assert f(2) == 4
    assert "lr" in f
    assert "x" not in f
    assert "other" not in f
    assert f.value["lr"] == 2


def test_a_stored_value_cannot_be_set_where_there_is_none():
    x = T.dscalar("x")
    f = symdnn.function([x], x, name="f")
    with pytest.raises(InputError, match=r"input 0 \(x\) keeps no value.*In\(variable, value"):
        f["x"]
    with pytest.raises(InputError, match="keeps no value"):
        f["x"] = 1
    with pytest.raises(InputError, match="has no input named 'z'"):
        f["z"]


def test_state_with_an_update():
    state, inc = T.dscalar("state"), T.dscalar("inc")
    f = symdnn.function([inc, In(state, value=0.0, update=state + inc)], state)
    assert [f(1), f(2), f(3)] == [0, 1, 3]
    assert f["state"] == 6
    assert f(1, 100) == 100  # a given value is what the update starts from
    assert f["state"] == 101


def test_an_input_whose_value_is_a_shared_variable_is_implicit():
    s = symdnn.shared(2.0, "s")
    x, y = T.dscalar("x"), T.dscalar("y")
    f = symdnn.function([In(y, value=s, update=y * 2), x], x + y)
    assert f(1) == 3
    assert s.get_value() == 4
    s.set_value(10.0)
    assert f(1) == 11
    with pytest.raises(InputError, match="implicit"):
        f(1, y=2)
    for _ in range(3):
        with pytest.raises(InputError, match=r"takes 1 argument\(s\)"):
            f(2, 1)
        f(1)


def test_an_unnamed_input_and_equal_names():
    a, b = T.dscalar("same"), T.dscalar("same")
    f = symdnn.function([a, b, T.dscalar()], a - b, on_unused_input="ignore")
    assert f(3, 1, 0) == 2
    with pytest.raises(InputError, match="several inputs named 'same'"):
        f(3, same=1)


def test_updates_see_old_values_and_follow_the_outputs():
    a, b = symdnn.shared(1.0, "a"), symdnn.shared(10.0, "b")
    f = symdnn.function([], [a, a + b], updates=[(a, a + b), (b, a)])
    assert f() == [1, 11]
    assert (a.get_value(), b.get_value()) == (11, 1)


def test_default_updates_and_how_to_leave_them_out():
    a, b = symdnn.shared(0, "a"), symdnn.shared(0, "b")
    a.default_update, b.default_update = a + 1, b + a
    symdnn.function([], b)()
    assert (a.get_value(), b.get_value()) == (1, 0)
    symdnn.function([], b, no_default_updates=True)()
    assert (a.get_value(), b.get_value()) == (1, 0)
    symdnn.function([], b, no_default_updates=[a])()
    assert (a.get_value(), b.get_value()) == (1, 1)
    symdnn.function([], b, updates={b: b * 100})()
    assert (a.get_value(), b.get_value()) == (1, 100)


def test_givens_reach_updates_too():
    x, y = T.dscalar("x"), T.dscalar("y")
    w, v = symdnn.shared(1.0, "w"), symdnn.shared(7.0, "v")
    f = symdnn.function([y], x + w, updates=[(w, w + x)], givens={x: y * 2, w: v})
    assert f(3) == 13
    assert w.get_value() == 13
    assert v.get_value() == 7


def test_givens_of_givens():
    x, y, z = T.dscalars("x", "y", "z")
    f = symdnn.function([z], x + y, givens=[(x, y * 10), (y, z + 1)])
    assert f(1) == 22


@pytest.mark.cpu
def test_out_and_in_are_accepted_as_theano_has_them():
    x = T.dvector("x")
    f = symdnn.function([In(x, borrow=True, mutable=True, autoname=False)], Out(x * 2, borrow=True))
    a = np.ones(2)
    first = f(a)
    assert a.tolist() == [1, 1]
    assert first.tolist() == f(a).tolist() == [2, 2]


def test_conversion_of_arguments():
    x = T.fvector("x")
    f = symdnn.function([x], x.sum())
    for given in ([1, 2], (1.0, 2.0), np.array([1, 2], "int8"), np.array([1, 2], "float32")):
        assert f(given) == 3
    with pytest.raises(TypeError, match="float64.*lose precision.*allow_input_downcast"):
        f(np.array([1.0, 2.0]))
    loose = symdnn.function([x], x.sum(), allow_input_downcast=True)
    assert loose(np.array([1.0, 2.0])) == 3
    strict = symdnn.function([In(x, strict=True)], x.sum())
    with pytest.raises(TypeError, match="strict"):
        strict([1, 2])


def test_trusted_input_is_not_converted():
    x = T.dvector("x")
    f = symdnn.function([x], x * 2)
    f.trust_input = True
    assert f(np.ones(2)).tolist() == [2, 2]


def test_copy_shares_shared_variables_and_owns_its_stored_values():
    w = symdnn.shared(0.0, "w")
    x, lr = T.dscalar("x"), T.dscalar("lr")
    f = symdnn.function([x, In(lr, value=1.0)], w, updates=[(w, w + lr * x)], name="f")
    g = f.copy(name="g")
    assert g.name == "g"
    g["lr"] = 10
    f(1)
    g(1)
    assert w.get_value() == 11
    assert f["lr"] == 1


def test_copy_swaps_shared_variables():
    w, v = symdnn.shared(np.zeros(2), "w"), symdnn.shared(np.ones(2), "v")
    f = symdnn.function([], w * 2, updates=[(w, w + 1)])
    g = f.copy(swap={w: v})
    assert g().tolist() == [2, 2]
    assert v.get_value().tolist() == [2, 2]
    assert w.get_value().tolist() == [0, 0]
    assert f().tolist() == [0, 0]
    with pytest.raises(InputError, match="no shared variable of"):
        f.copy(swap={v: w})
    with pytest.raises(TypeError, match="copy: swap of w.*float64"):
        f.copy(swap={w: symdnn.shared(np.zeros(2, "float32"))})


def test_copy_without_updates():
    w = symdnn.shared(1.0, "w")
    f = symdnn.function([], w * 2, updates=[(w, w + 1)])
    g = f.copy(delete_updates=True)
    assert g() == g() == 2
    assert w.get_value() == 1


def test_deepcopy_owns_its_shared_variables():
    w = symdnn.shared(1.0, "w")
    s = T.dscalar("s")
    f = symdnn.function([In(s, value=0.0, update=s + 1)], [w, s], updates=[(w, w * 2)])
    g = copy.deepcopy(f)
    assert g() == [1, 0]
    assert g() == [2, 1]
    assert f() == [1, 0]
    assert w.get_value() == 2
    assert [v.get_value() for v in g.get_shared() if v.name == "w"] == [4]


def test_a_function_and_its_variable_copied_together_stay_together():
    w = symdnn.shared(1.0, "w")
    f = symdnn.function([], None, updates=[(w, w * 2)])
    g, v = copy.deepcopy((f, w))
    g()
    assert v.get_value() == 2
    assert w.get_value() == 1


def test_theano_programs_find_the_graph():
    x = T.dscalar("x")
    f = symdnn.function([x], T.exp(x), name="f")
    ops = [type(node.op).__name__ for node in f.maker.fgraph.toposort()]
    assert "Exp" in ops
    assert f.mode is f.stages.mode
    assert repr(f) == "<symdnn function f(x)>"
