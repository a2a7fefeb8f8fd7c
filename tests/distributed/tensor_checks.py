"""Tensor parallel networks on several ranks against the same on one."""

import functools
import tempfile

import numpy as np

import symdnn
import symdnn.distributed as dist
import symdnn.tensor as T
from symdnn import nn
from symdnn.world import process


def drawn():
    return np.random.default_rng(5)


def trained(build, layers, group=None, parallel=None, steps=3, rows=slice(None)):
    """Losses, all values, gradients, and the collectives of a step, of a network that is shared out
    by ``layers``, or whole (None)."""
    nn.init.seed(3)
    net, inputs, loss, values = build()
    if layers is not None:
        nn.parallel.shard(net, layers, group)
    names = net.named_parameters()
    grads = symdnn.grad(loss, list(names.values()))
    options = {} if parallel is None else {"distributed": parallel}
    updates = nn.optim.adamw(loss, net, 0.01, clip_norm=0.5, eps=1e-3, **options)
    step = symdnn.function(inputs, loss, updates=updates)
    slopes = symdnn.function(inputs, grads)
    given = [v[rows] for v in values]
    found = dict(zip(names.keys(), slopes(*given), strict=True))
    losses = [float(step(*given)) for _ in range(steps)]
    kinds = [row.cells()[2] for row in step.distributed_report().rows]
    return losses, net.state_dict(), found, updates.state_dict(), kinds


def same(got, want, rtol=2e-4):
    for a, b in zip(got[:4], want[:4]):
        pairs = [(n, a[n], b[n]) for n in b] if isinstance(b, dict) else [("loss", a, b)]
        for name, x, y in pairs:
            np.testing.assert_allclose(x, y, rtol=rtol, atol=2e-6, err_msg=name)


def perceptron():
    x, t = T.matrix("x"), T.ivector("t")
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), nn.Linear(4, 8))
    loss = nn.CrossEntropyCriterion()(net(x), t)
    rng = drawn()
    values = rng.normal(size=(8, 8)).astype("float32"), rng.integers(0, 8, 8).astype("int32")
    return net, [x, t], loss, values


def language_model(dropout=0.0):
    x, t = T.lmatrix("x"), T.lmatrix("t")
    net = nn.models.gpt2(words=16, context=8, width=16, layers=2, heads=4, dropout=dropout)
    net.train()
    scores = net(x)
    loss = nn.CrossEntropyCriterion()(scores.reshape((-1, 16)), t.flatten())
    return net, [x, t], loss, list(drawn().integers(0, 16, (2, 4, 7)))


def attention():
    x, t = T.tensor3("x"), T.ivector("t")
    attend = nn.MultiheadAttention(16, 4, batch_first=True)
    net = nn.ParallelTable().add(attend).add(nn.Linear(16, 8))
    y = net[1](attend(x, x, x, need_weights=False)[0]).mean(axis=1)
    loss = nn.CrossEntropyCriterion()(y, t)
    rng = drawn()
    values = rng.normal(size=(4, 5, 16)).astype("float32"), rng.integers(0, 8, 4).astype("int32")
    return net, [x, t], loss, values


def check_a_perceptron():
    want = trained(perceptron, None)
    n = dist.size()
    for layers in ({"": "columns"}, {"0": "columns"}, {"0": "columns", "2": "rows"},
                   {"2": "rows"}, {"3": "columns"}, {"0.weight": 1, "3.weight": 0}):  # fmt: skip
        same(trained(perceptron, layers), want)
    kinds = trained(perceptron, {"0": "columns", "2": "rows"})[4]
    # Of the two layers one sum, and that of the squares of all gradients for clip_norm.
    assert kinds == ["AllReduce(sum)"] * 2 * (n > 1), kinds


def check_a_language_model():
    want = trained(language_model, None)
    for layers in (
        {"transformer.h.*.mlp": "columns"},
        {"transformer.h.*.attn": "heads"},
        {"transformer.wte": "vocabulary"},
        {"*.attn": "heads", "*.mlp": "columns", "*.wte": "vocabulary"},
    ):
        found = trained(language_model, layers)
        same(found, want)
    assert not any("Gather" in kind for kind in found[4]), found[4]


def check_an_attention():
    want = trained(attention, None)
    found = trained(attention, {"0": "heads"})
    same(found, want)
    assert not any("Gather" in kind for kind in found[4]), found[4]


def check_a_llama_with_groups_of_heads():
    want = trained(llama, None)
    found = trained(llama, {"*.self_attn": "heads", "*.mlp": "columns"})
    same(found, want)
    assert not any("Gather" in kind for kind in found[4]), found[4]


def llama():
    x, t = T.lmatrix("x"), T.lmatrix("t")
    net = nn.models.llama(words=16, width=32, layers=1, heads=8, groups=4, hidden=24)
    loss = nn.CrossEntropyCriterion()(net(x).reshape((-1, 16)), t.flatten())
    return net, [x, t], loss, list(drawn().integers(0, 16, (2, 4, 7)))


def check_a_mesh_of_data_and_tensor():
    """Two ranks share out a network, and with four ranks two such pairs share out the samples."""
    mesh = dist.Mesh({"data": -1, "tensor": 2})
    want = trained(language_model, None)
    part, parts = mesh.position["data"], mesh.sizes["data"]
    found = trained(
        language_model, {"*.attn": "heads", "*.mlp": "columns", "*.wte": "vocabulary"},
        mesh.group("tensor"), dist.DataParallel(mesh.group("data")), rows=slice(part, None, parts),
    )  # fmt: skip
    same(([], *found[1:2], {}, *found[3:4]), ([], *want[1:2], {}, *want[3:4]))


def check_fit_with_checkpoints():
    """On two ranks that share out a network, and with four on two such pairs. Those with the same
    samples draw the same numbers."""
    mesh = dist.Mesh({"data": -1, "tensor": 2})
    rng, criterion = drawn(), nn.CrossEntropyCriterion()
    data = rng.normal(size=(14, 6)).astype("float32"), rng.integers(0, 8, 14).astype("int32")
    agreed = process.current().gather

    def fitted(path, epochs, **options):
        nn.init.seed(3)
        net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 8))
        nn.parallel.shard(net, {"0": "columns", "3": "rows"}, mesh.group("tensor"))
        found = nn.fit(
            net, criterion, "adam", nn.batches(data, 4, shuffle=True), epochs, checkpoint=path,
            distributed=dist.DataParallel(mesh.group("data")), **options,
        )  # fmt: skip
        values = {n: np.asarray(v).tolist() for n, v in net.state_dict().items()}
        told = agreed("losses and values", [list(found["loss"]), values])
        assert all(one == told[0] for one in told)
        return values

    with symdnn.config.change_flags({"cpu.compile": "always"}):
        folder = agreed("folder", tempfile.mkdtemp())[0]
        whole = fitted(None, 3)
        for name in ("run.safetensors", "run.safetensors.index.json"):
            fitted(f"{folder}/{name}", 2)
            assert fitted(f"{folder}/{name}", 3, resume=True) == whole
        kept = symdnn.io.load_parameters(f"{folder}/run.safetensors")
        assert [v.shape for n, v in kept.items() if n.startswith("random/")] == [(2,)]


def check_a_mesh_with_norms_uneven_batches_clipping_and_accumulation():
    """A normalisation over the samples of all ranks is part of a network that pairs share out."""
    mesh = dist.Mesh({"data": -1, "tensor": 2})
    rng = drawn()
    data = rng.normal(size=(17, 6)).astype("float32"), rng.integers(0, 8, 17).astype("int32")
    optimiser = functools.partial(nn.optim.adamw, clip_norm=0.2, accumulate=2, eps=1e-3)

    def fitted(layers, parallel):
        nn.init.seed(3)
        net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNormalization(8), nn.Tanh(), nn.Linear(8, 12), nn.Tanh(),
            nn.Linear(12, 8),
        )  # fmt: skip
        if layers:
            nn.sync_batch_norm(net, mesh.group("data"))
            nn.parallel.shard(net, layers, mesh.group("tensor"))
        found = nn.fit(
            net, nn.CrossEntropyCriterion(), optimiser, nn.batches(data, 5, shuffle=True), 3,
            lr=0.05, distributed=parallel,
        )  # fmt: skip
        return {"loss": list(found["loss"]), **net.state_dict()}

    want = fitted(None, False)
    for layers in ({"3": "columns", "5": "rows"}, {"3": "columns"}):
        found = fitted(layers, dist.DataParallel(mesh.group("data")))
        for name, v in want.items():
            np.testing.assert_allclose(found[name], v, rtol=1e-3, atol=2e-5, err_msg=name)
