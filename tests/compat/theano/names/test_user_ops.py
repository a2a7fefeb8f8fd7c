"""Ops with Theano's contract: ``make_node``, ``perform``, ``grad``, ``infer_shape``."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from symdnn import rewrites
from symdnn.compat.theano.names import user_ops
from symdnn.errors import NonDifferentiable
from symdnn.graph.traverse import toposort


class Scale(user_ops.Op):
    """``x * factor``, as a program of Theano's would write it."""

    __props__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor

    def make_node(self, x):
        import theano

        x = theano.tensor.as_tensor_variable(x)
        return theano.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, output_storage):
        assert node.op == self
        assert node.outputs[0].dtype == inputs[0].dtype
        output_storage[0][0] = inputs[0] * self.factor

    def infer_shape(self, node, i0_shapes):
        return [i0_shapes[0]]

    def grad(self, inputs, output_grads):
        return [output_grads[0] * self.factor]


def test_values_gradients_shapes_and_merging(theano, T):
    x = T.dmatrix("x")
    y, again = Scale(3.0)(x), Scale(3.0)(x)
    assert Scale(3.0) == Scale(3.0) != Scale(2.0)
    assert str(Scale(3.0)) == "Scale{factor=3.0}"
    assert isinstance(y.owner, theano.gof.Apply)
    f = theano.function([x], [y + again, T.grad((y**2).sum(), x), y.shape])
    assert sum(isinstance(n.op, Scale) for n in f.maker.fgraph.toposort()) <= 2
    value, slope, shape = f([[1.0, 2.0]])
    np.testing.assert_array_equal(value, [[6, 12]])
    np.testing.assert_array_equal(slope, [[18, 36]])
    assert tuple(shape) == (1, 2)
    sizes = theano.function([x], y.shape)
    assert not any(isinstance(n.op, Scale) for n in sizes.maker.fgraph.toposort())
    theano.gradient.verify_grad(lambda v: Scale(2.0)(v), [np.random.rand(2, 3)])


def test_in_a_scan_and_in_files(theano, T):
    x = T.dvector("x")
    steps, _ = theano.scan(lambda s: Scale(2.0)(s), outputs_info=[x], n_steps=3)
    f = theano.function([x], [steps[-1], T.grad(steps[-1].sum(), x)])
    for each in (f, pickle.loads(pickle.dumps(f))):
        last, slope = each([1.0, -1.0])
        np.testing.assert_array_equal(last, [8, -8])
        np.testing.assert_array_equal(slope, [8, 8])


class SumAndLast(user_ops.Op):
    """Two outputs by ``itypes`` and ``otypes``; the second has no gradient."""

    __props__ = ()

    def __init__(self):
        import theano.tensor as T

        self.itypes, self.otypes = [T.dvector], [T.dscalar, T.lscalar]

    def perform(self, node, inputs, outputs):
        outputs[0][0], outputs[1][0] = np.asarray(inputs[0].sum()), np.asarray(len(inputs[0]))

    def connection_pattern(self, node):
        return [[True, False]]

    def L_op(self, inputs, outputs, output_grads):
        import theano
        import theano.tensor as T

        g, n = output_grads
        assert isinstance(n.type, theano.gradient.DisconnectedType)
        return [T.ones_like(inputs[0]) * g]


def test_several_outputs(theano, T):
    x = T.dvector("x")
    total, n = SumAndLast()(x)
    f = theano.function([x], [total, n, T.grad(total * 3, x)])
    total_, n_, slope = f([1.0, 2.0])
    assert (total_, n_, n_.dtype) == (3.0, 2, "int64")
    np.testing.assert_array_equal(slope, [3, 3])
    with pytest.raises(TypeError, match="input 0 has type"):
        SumAndLast()(T.dmatrix())


def test_what_an_op_may_not_do(theano, T):
    class Wrong(user_ops.Op):
        __props__ = ("what",)

        def __init__(self, what):
            self.what = what

        def make_node(self, x):
            return theano.Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            if self.what == "ndim":
                outputs[0][0] = inputs[0].sum()
            elif self.what == "in place":
                inputs[0][...] = 7
                outputs[0][0] = inputs[0]

        def grad(self, inputs, g):
            return [theano.gradient.grad_not_implemented(self, 0, inputs[0], "not yet")]

    x = T.dvector("x")
    for what, said in (("nothing", "left an output empty"), ("ndim", "promised")):
        with pytest.raises(ValueError, match=said):
            theano.function([x], Wrong(what)(x))([1.0])
    with pytest.raises(NonDifferentiable, match="not implemented.*not yet"):
        T.grad(Wrong("nothing")(x).sum(), x)
    y = x * 2
    with pytest.raises(ValueError, match="belongs to another node"):
        theano.Apply(Wrong("x"), [x], [y])


@pytest.mark.parametrize(
    ("gives", "kind", "said"),
    [
        (lambda x, g: g, TypeError, r"a list of 2, the \w+ of each \w+ \(x, y\), got Alloc"),
        (lambda x, g: None, TypeError, "got None"),
        (lambda x, g: [g], ValueError, r"each input \(x, y\), got 1"),
        (lambda x, g: [g.sum(), g], ValueError, "gradient of input 0: wanted 2 dimensions, as x"),
        (lambda x, g: [g, 0.0], TypeError, "gradient of input 1: wanted a variable or None"),
        (lambda x, g: [g, np.ones((2, 2))], TypeError, "of type ndarray"),
        (lambda x, g: [g, x.no_such_method()], AttributeError, "no_such_method"),
    ],
)
def test_a_gradient_that_is_none(theano, T, gives, kind, said):
    class Product(user_ops.Op):
        __props__ = ()

        def make_node(self, x, y):
            return theano.Apply(self, [x, y], [x.type()])

        def grad(self, inputs, g):
            return gives(inputs[0], g[0])

    class Tangent(Product):
        def R_op(self, inputs, given):
            return [given[0].sum()]

    x, y = T.dmatrix("x"), T.dmatrix("y")
    with pytest.raises(kind, match=said) as caught:
        T.grad(Product()(x, y).sum(), [x, y])
    assert "test_user_ops.py" in caught.value.__notes__[-1]  # the line that applied the op
    with pytest.raises(ValueError, match="tangent of output 0: wanted 2 dimensions"):
        theano.gradient.Rop(Tangent()(x, y), x, x)


def test_a_node_that_is_none(theano, T):
    class Odd(user_ops.Op):
        __props__ = ()

        def make_node(self, x):
            return None if x.name == "x" else theano.Apply(self, [x], [x.type])

    with pytest.raises(TypeError, match="Odd.make_node: wanted a node, .*, got None"):
        Odd()(T.dvector("x"))
    with pytest.raises(TypeError, match=r"Apply of Odd: wanted outputs such as x.type\(\)"):
        Odd()(T.dvector("y"))


def test_in_place_ops_get_copies(theano, T):
    class InPlace(user_ops.Op):
        __props__ = ()
        destroy_map = {0: [0]}

        def make_node(self, x):
            return theano.Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            inputs[0] += 1
            outputs[0][0] = inputs[0]

    x, given = T.dvector("x"), np.zeros(3)
    y, z = theano.function([x], [InPlace()(x), x * 2])(given)
    np.testing.assert_array_equal(y, [1, 1, 1])
    np.testing.assert_array_equal(z, [0, 0, 0])
    np.testing.assert_array_equal(given, [0, 0, 0])


def test_as_op(theano, T):
    @theano.compile.ops.as_op([T.dmatrix, T.dmatrix], [T.dmatrix],
                              infer_shape=lambda node, s: [(s[0][0], s[1][1])])  # fmt: skip
    def product(a, b):
        return a @ b

    x, y = T.dmatrices("x", "y")
    f = theano.function([x, y], [product(x, y), product(x, y).shape])
    value, shape = f(np.ones((2, 3)), np.ones((3, 4)))
    np.testing.assert_array_equal(value, np.full((2, 4), 3.0))
    assert tuple(shape) == (2, 4)
    with pytest.raises(TypeError, match="types such as T.dvector"):
        theano.as_op(["dmatrix"], [T.dmatrix])


def test_identities_with_another_gradient(theano, T):
    class Clip(theano.compile.ViewOp):
        def __init__(self, low, high):
            self.low, self.high = low, high

        def grad(self, args, g_outs):
            return [T.clip(g, self.low, self.high) for g in g_outs]

    theano.tensor.opt.register_canonicalize(theano.gof.OpRemove(Clip(0, 1)), name="clip")
    with pytest.raises(TypeError, match="docs/rewrites.md"):
        theano.tensor.opt.register_canonicalize(lambda node: None)
    x = T.dscalar("x")
    y = Clip(-1, 1)(x) ** 2 + Clip(-5, 5)(x) ** 2
    f = theano.function([x], [y, T.grad(y, x)])
    assert [float(v) for v in f(4.0)] == [32.0, 6.0]
    assert not any(isinstance(n.op, Clip) for n in f.maker.fgraph.toposort())


def test_a_composite_scalar_op(theano, T):
    scalar = theano.scalar
    x, y = scalar.float64("x"), scalar.float64("y")
    op = scalar.Composite([x, y], [scalar.add(scalar.mul(x, y), scalar.exp(x)), x - y * 2, y])
    a, b = T.dmatrix("a"), T.dvector("b")
    outs = T.Elemwise(op)(a, b)
    slope = theano.grad(outs[0].sum(), b)
    values = np.linspace(-1, 1, 6).reshape(2, 3), np.arange(3.0)
    found = theano.function([a, b], [*outs, slope])(*values)
    v, w = values
    for got, right in zip(found, [v * w + np.exp(v), v - w * 2, w, v.sum(0)], strict=True):
        np.testing.assert_allclose(got, right)
    single = scalar.Composite([x], [scalar.sqr(x)])
    np.testing.assert_allclose(theano.function([a], single(a))(v), v**2)
    with pytest.raises(TypeError, match="Dot is no scalar op"):
        scalar.Composite([x], [T.dot(b, b) * x])
    with pytest.raises(TypeError, match="wanted 2 operands, got 1"):
        op(a)


def test_scalar_ops_of_the_program(theano, T):
    class Cube(theano.scalar.UnaryScalarOp):
        def impl(self, x):
            return x**3

        def grad(self, inputs, g):
            return [g[0] * 3 * inputs[0] ** 2]

    cube = T.Elemwise(Cube(theano.scalar.upgrade_to_float, name="cube"))
    x = T.dmatrix("x")
    y = cube(x)
    f = theano.function([x], [y, T.grad(y.sum(), x)])
    value, slope = f([[2.0, -1.0]])
    np.testing.assert_array_equal(value, [[8, -1]])
    np.testing.assert_array_equal(slope, [[12, 3]])
    assert cube(T.ivector()).dtype == "float64"

    class Hypot(theano.scalar.BinaryScalarOp):
        def impl(self, x, y):
            return np.hypot(x, y)

        def grad(self, inputs, g):
            a, b = inputs
            return [g[0] * v / T.sqrt(a**2 + b**2) for v in (a, b)]

    row, col = T.drow("r"), T.dcol("c")
    z = Hypot(name="hypot")(row, col)
    g = theano.function([row, col], [z, *T.grad(z.sum(), [row, col])])
    value, by_row, by_col = g([[3.0, 0.0]], [[4.0], [1.0], [2.0]])
    assert (value.shape, by_row.shape, by_col.shape) == ((3, 2), (1, 2), (3, 1))
    np.testing.assert_allclose(value[:, 0], np.hypot(3, [4, 1, 2]))


def test_jacobian_products_by_the_program(theano, T):
    class Square(user_ops.Op):
        __props__ = ()
        calls = []

        def make_node(self, x):
            return theano.Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0] ** 2

        def grad(self, inputs, g):
            return [2 * inputs[0] * g[0]]

        def R_op(self, inputs, eval_points):
            self.calls.append(1)
            return [2 * inputs[0] * eval_points[0]]

    x, v = T.dvectors("x", "v")
    f = theano.function([x, v], T.Rop(Square()(x), x, v))
    np.testing.assert_array_equal(f([1.0, 2.0], [3.0, 4.0]), [6, 16])
    assert Square.calls


def test_raising(theano, T):
    x = T.dscalar("x")
    y = theano.raise_op.Raise("no", ValueError)(x)
    with pytest.raises(ValueError, match="no"):
        theano.function([x], y)(1.0)
    assert toposort([y])


def test_objects_are_no_inputs(theano, T):
    class Pick(theano.Op):
        __props__ = ()

        def make_node(self, values):
            return theano.Apply(self, [values], [T.dvector()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0][0]

    held = theano.generic("held")
    with pytest.raises(TypeError, match="held is a Python object"):
        theano.function([held], Pick()(held))
    with pytest.raises(TypeError, match="__props__"):
        theano.function([], Pick()(theano.shared({"a": 1}, "held")))


def test_an_op_of_c_code_alone_is_refused_by_name(theano, T):
    class InC(theano.Op):
        __props__ = ()

        def make_node(self, x):
            return theano.Apply(self, [x], [x.type()])

        def c_code(self, node, name, inputs, outputs, sub):
            return ""

    x = T.dvector("x")
    with pytest.raises(theano.gof.utils.MethodNotDefined, match="InC has C code alone"):
        theano.function([x], InC()(x))([1.0])


def test_rewrites_of_the_program(theano, T):
    seen = []

    @theano.tensor.opt.register_canonicalize("fast_compile")
    @theano.gof.local_optimizer([T.arctan, T.elemwise.Sum])
    def own_small_angles(node):
        seen.append(node.op)
        return [node.inputs[0] * 2.0] if node.op == T.arctan else False

    class OwnTanh(theano.gof.LocalOptimizer):
        def __init__(self):
            """As programs write it: without the base's."""

        def tracks(self):
            return [T.tanh]

        def transform(self, node):
            return [node.inputs[0] * 3]

    theano.tensor.opt.register_specialize(OwnTanh(), name="own_tanh")
    try:
        x = T.vector("x")
        f = theano.function([x], T.sqrt(T.arctan(x)).sum())
        g = theano.function([x], T.arctan(x), mode=theano.Mode().excluding("own_small_angles"))
        h = theano.function([x], [T.tanh(x), T.cosh(x)])
    finally:
        for name in ("own_small_angles", "own_tanh"):
            rewrites.unregister(name)
    assert {type(op).__name__ for op in seen} == {"ArcTan", "Sum"}
    np.testing.assert_allclose(g([1.0]), np.arctan([1.0]))
    np.testing.assert_allclose(f([2.0, 8.0]), 6.0)
    np.testing.assert_allclose(h([2.0])[0], [6.0])
    np.testing.assert_allclose(h([2.0])[1], np.cosh([2.0]))
