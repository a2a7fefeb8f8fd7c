"""Rows of :mod:`benchmarks.cpu.survey_varied`: prices, statistics and classic learning."""

from __future__ import annotations

from typing import Any

from benchmarks.cpu.family_rows import made
from benchmarks.cpu.varied_spaces import Rows


def rows() -> Rows:
    """Those of this module."""
    yield from _finance()
    yield from _statistics()
    yield from _learning()


# -- prices ----------------------------------------------------------------------------------------


def _finance() -> Rows:
    s = made(100000)
    yield "Black-Scholes", (s, made(100000, seed=1)), black_scholes, "", (0,)
    yield (
        "Black-Scholes float64",
        (made(20000, dtype="float64"), made(20000, dtype="float64", seed=1)),
        black_scholes,
        "",
        (0,),
    )
    yield "Monte-Carlo paths", (made(1000, 252),), paths, "", (0,)
    yield "Asian option", (made(252, 4000),), asian, "", (0,)
    yield "binomial tree by scan", (made(64),), binomial_tree, "", ()
    yield "portfolio variance", (made(50), made(1000, 50)), portfolio, "", (0,)
    yield "bond prices", (made(500), made(60)), bonds, "", (0,)


def _ndtr(xp: Any, x: Any) -> Any:
    return 0.5 * (1 + xp.erf(x / 2**0.5))


def black_scholes(xp: Any, s: Any, k: Any) -> Any:
    s, k, t, v, r = abs(s) * 10 + 90, abs(k) * 10 + 90, 0.5, 0.2, 0.03
    d1 = (xp.log(s / k) + (r + v * v / 2) * t) / (v * t**0.5)
    d2 = d1 - v * t**0.5
    return s * _ndtr(xp, d1) - k * 2.718281828 ** (-r * t) * _ndtr(xp, d2)


def paths(xp: Any, z: Any) -> Any:
    steps = 0.0001 + 0.01 * z
    last = xp.exp(xp.cumsum(steps, 1)[:, -1])
    return xp.maximum(last - 1, 0 * last).mean()


def asian(xp: Any, z: Any) -> Any:
    s = xp.exp(xp.cumsum(0.01 * z - 0.00005, 0))
    over = s.mean(0) - 1
    return xp.where(over > 0, over, 0 * over).mean() * 0.97


def binomial_tree(xp: Any, x: Any) -> Any:
    def step(v: Any, rate: Any) -> Any:
        up = xp.concatenate([v[1:], v[-1:]])
        return xp.maximum(0.99 * (0.5 * v + 0.5 * up) + 0 * rate, abs(x) - 1)

    return xp.scan(step, abs(x), x)[-1]


def portfolio(xp: Any, w: Any, r: Any) -> Any:
    w = xp.softmax(w, 0)
    c = r - r.mean(0)
    return xp.sqrt(w @ (c.T @ c / 1000) @ w)


def bonds(xp: Any, y: Any, c: Any) -> Any:
    t = xp.cast(xp.arange(1, 61), "float32") / 2
    return (abs(c) * xp.exp(-0.05 * abs(y)[:, None] * t)).sum(1)


# -- statistics ------------------------------------------------------------------------------------


def _statistics() -> Rows:
    x, y = made(2000, 8), made(2000)
    yield "GMM EM step", (made(3000, 4), made(5, 4, seed=1)), gmm, "", (1,)
    yield "logistic Newton step", (x, y, made(8)), newton, "", (2,)
    yield "kernel density", (made(3000), made(200)), density, "", (0,)
    yield "ridge by Cholesky", (x, y), ridge, "", (0,)
    yield (
        "bootstrap means",
        (made(500), made(400, 500, dtype="int64", high=500)),
        bootstrap,
        "",
        (0,),
    )
    yield "quantiles of columns", (x,), quantiles, "numpy", ()
    yield "Huber regression", (x, y, made(8)), huber, "", (2,)
    yield "Tukey weights", (x, y, made(8)), tukey, "", (2,)
    yield "Spearman correlation", (made(20000), made(20000, seed=1)), spearman, "", ()
    yield "Mahalanobis", (x, made(8, 8)), mahalanobis, "", (0,)
    yield "Poisson regression", (x, made(2000, dtype="int32", high=9), made(8)), poisson, "", (2,)
    yield "skew and kurtosis", (x,), moments, "", (0,)
    yield "Gini", (y,), gini, "", ()
    yield "chi-square of a table", (made(30, 40, dtype="int32", low=1),), chi_square, "", ()
    yield "energy distance", (made(300, 5), made(250, 5, seed=1)), energy, "", (0,)
    yield (
        "negative binomial",
        (made(5000, dtype="int32", high=20), made(5000)),
        neg_binomial,
        "numpy",
        (1,),
    )
    yield "HMM forward by scan", (made(100, 8), made(8, 8)), hmm, "", (0,)
    yield "Sinkhorn by scan", (made(60, 50),), sinkhorn, "", (0,)


def gmm(xp: Any, x: Any, m: Any) -> Any:
    r = xp.softmax(-0.5 * ((x[:, None] - m) ** 2).sum(2), 1)
    n = r.sum(0)
    means = (r.T @ x) / n[:, None]
    return (r[:, :, None] * (x[:, None] - means) ** 2).sum(0) / n[:, None]


def newton(xp: Any, x: Any, y: Any, w: Any) -> Any:
    p = xp.sigmoid(x @ w)
    slope = x.T @ (p - xp.cast(y > 0, "float32"))
    h = (x.T * (p * (1 - p))) @ x + 0.1 * xp.eye(8, dtype=w.dtype)
    return w - xp.linalg.solve(h, slope)


def density(xp: Any, x: Any, at: Any) -> Any:
    z = (at[:, None] - x) / 0.3
    return xp.exp(-0.5 * z * z).mean(1) / (0.3 * 2.5066)


def ridge(xp: Any, x: Any, y: Any) -> Any:
    root = xp.linalg.cholesky(x.T @ x + 2 * xp.eye(8, dtype=x.dtype))
    half = xp.linalg.solve(root, x.T @ y)
    return xp.linalg.solve(root.T, half)


def bootstrap(xp: Any, x: Any, at: Any) -> Any:
    means = x[at].mean(1)
    return xp.sqrt(((means - means.mean()) ** 2).mean())


def quantiles(xp: Any, x: Any) -> Any:
    q = {"_Torch": [0.1, 0.5, 0.9]}.get(type(xp).__name__)
    if q is not None:
        from benchmarks.cpu.nest import torch

        return torch.quantile(x, torch.tensor(q, dtype=x.dtype), 0)
    from benchmarks.cpu.nest import np

    return xp.quantile(x, np.array([0.1, 0.5, 0.9], "float32"), 0)


def huber(xp: Any, x: Any, y: Any, w: Any) -> Any:
    e = abs(x @ w - y)
    return xp.where(e < 1, 0.5 * e * e, e - 0.5).mean()


def tukey(xp: Any, x: Any, y: Any, w: Any) -> Any:
    u = (x @ w - y) / 4.685
    weights = xp.where(abs(u) < 1, (1 - u * u) ** 2, 0 * u)
    return (weights * (x @ w - y) ** 2).sum() / weights.sum()


def spearman(xp: Any, x: Any, y: Any) -> Any:
    a, b = (xp.cast(xp.argsort(xp.argsort(v)), "float32") for v in (x, y))
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / xp.sqrt((a * a).sum() * (b * b).sum())


def mahalanobis(xp: Any, x: Any, w: Any) -> Any:
    p = xp.linalg.inv(w @ w.T + xp.eye(8, dtype=w.dtype))
    c = x - x.mean(0)
    return xp.sqrt(((c @ p) * c).sum(1))


def poisson(xp: Any, x: Any, y: Any, w: Any) -> Any:
    eta = x @ w * 0.1
    return (xp.exp(eta) - xp.cast(y, "float32") * eta).mean()


def moments(xp: Any, x: Any) -> Any:
    c = x - x.mean(0)
    v = (c**2).mean(0)
    return xp.stack([(c**3).mean(0) / v**1.5, (c**4).mean(0) / v**2 - 3])


def gini(xp: Any, y: Any) -> Any:
    v = xp.sort(abs(y), -1)
    n = xp.cast(xp.arange(1, 2001), "float32")
    return (n * v).sum() * 2 / (2000 * v.sum()) - 2001 / 2000


def chi_square(xp: Any, x: Any) -> Any:
    x = xp.cast(x, "float32")
    wanted = x.sum(1, keepdims=True) * x.sum(0, keepdims=True) / x.sum()
    return ((x - wanted) ** 2 / wanted).sum()


def energy(xp: Any, x: Any, y: Any) -> Any:
    def mean(a: Any, b: Any) -> Any:
        return xp.sqrt(((a[:, None] - b) ** 2).sum(2) + 1e-6).mean()

    return 2 * mean(x, y) - mean(x, x) - mean(y, y)


def neg_binomial(xp: Any, y: Any, w: Any) -> Any:
    from benchmarks.cpu.nest import jax

    gammaln = jax.scipy.special.gammaln if type(xp).__name__ == "_Jax" else xp.lgamma
    k, r = xp.cast(y, "float32"), 2.0 + w * 0
    m = xp.exp(0.3 * w)
    found = gammaln(k + r) - gammaln(k + 1) - gammaln(r)
    return -(found + r * xp.log(r / (r + m)) + k * xp.log(m / (r + m))).mean()


def hmm(xp: Any, x: Any, w: Any) -> Any:
    rows = xp.softmax(w, 1)

    def step(a: Any, v: Any) -> Any:
        a = (a @ rows) * xp.exp(-0.5 * v * v)
        return a / a.sum()

    return xp.scan(step, rows[0], x)


def sinkhorn(xp: Any, x: Any) -> Any:
    k = xp.exp(-abs(x))

    def step(v: Any, _: Any) -> Any:
        return 1 / (50 * (k.T @ (1 / (60 * (k @ v)))))

    v = xp.scan(step, k[0] * 0 + 1, x[:20, 0])[-1]
    return k * v / (60 * (k @ v))[:, None]


# -- classic learning ------------------------------------------------------------------------------


def _learning() -> Rows:
    x, y = made(500, 16), made(300, 16, seed=1)
    yield "k-NN vote", (x, y, made(500, dtype="int64", high=5)), knn, "numpy", ()
    yield "k-means step", (made(3000, 8), made(10, 8, seed=1)), k_means, "", ()
    yield "SVM hinge", (x, made(500), made(16)), hinge, "", (2,)
    yield (
        "multiclass hinge",
        (x, made(500, dtype="int64", high=6), made(16, 6)),
        multi_hinge,
        "",
        (2,),
    )
    yield (
        "naive Bayes counts",
        (made(2000, 30, dtype="int64", high=4), made(2000, dtype="int64", high=3)),
        naive_bayes,
        "",
        (),
    )
    yield "decision stumps", (made(400, 10), made(400)), stumps, "", ()
    yield "PCA by SVD", (made(400, 20),), pca, "", ()
    yield "PCA by eigh", (made(2000, 20),), pca_eigh, "", ()
    yield "RBF kernel ridge", (made(150, 6), made(150)), kernel_ridge, "", (0,)
    yield "oblique tree paths", (made(3000, 8), made(15, 8), made(16)), soft_tree, "", (1,)
    yield (
        "gradient histogram",
        (made(5000, 6, dtype="uint8", high=32), made(5000)),
        gradient_histogram,
        "",
        (1,),
    )
    yield "AUC by ranks", (made(10000), made(10000, dtype="bool")), auc, "", ()
    yield (
        "confusion matrix",
        (made(10000, dtype="int64", high=7), made(10000, dtype="int64", high=7, seed=1)),
        confusion,
        "",
        (),
    )
    yield "factorisation machine", (made(1000, 30), made(30, 8), made(30)), fm, "", (1,)


def _squares(xp: Any, x: Any, y: Any) -> Any:
    return (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T


def knn(xp: Any, x: Any, at: Any, labels: Any) -> Any:
    near = xp.argsort(_squares(xp, at, x), 1)[:, :5]
    votes = xp.cast(abs(labels[near][:, :, None] - xp.arange(5)) < 1, "int32")
    return votes.sum(1).argmax(1)


def k_means(xp: Any, x: Any, m: Any) -> Any:
    at = _squares(xp, x, m).argmin(1)
    sums = xp.added(m * 0, at, x)
    counts = xp.added(m[:, 0] * 0, at, x[:, 0] * 0 + 1)
    return sums / xp.clip(counts, 1, 1e9)[:, None]


def hinge(xp: Any, x: Any, y: Any, w: Any) -> Any:
    margin = 1 - xp.sign(y) * (x @ w)
    return xp.where(margin > 0, margin, 0 * margin).mean() + 0.01 * (w * w).sum()


def multi_hinge(xp: Any, x: Any, y: Any, w: Any) -> Any:
    s = x @ w
    own = xp.take_along_axis(s, y[:, None], 1)
    over = s - own + 1
    return (xp.where(over > 0, over, 0 * over).sum(1) - 1).mean()


def naive_bayes(xp: Any, x: Any, y: Any) -> Any:
    hot = xp.cast(abs(x[:, :, None] - xp.arange(4)) < 1, "float32")
    of = xp.cast(abs(y[:, None] - xp.arange(3)) < 1, "float32")
    counts = xp.einsum("nk,ndv->kdv", of, hot) + 1
    return xp.log(counts / counts.sum(2, keepdims=True))


def stumps(xp: Any, x: Any, y: Any) -> Any:
    order = xp.argsort(x, 0)
    own = xp.cumsum(y[order], 0)[:-1]
    n = xp.cast(xp.arange(1, 400), "float32")[:, None]
    gain = own**2 / n + (y.sum() - own) ** 2 / (400 - n)
    return gain.argmax(0)


def pca(xp: Any, x: Any) -> Any:
    c = x - x.mean(0)
    return xp.linalg.svd(c, full_matrices=False)[1] ** 2 / 400


def pca_eigh(xp: Any, x: Any) -> Any:
    c = x - x.mean(0)
    return xp.linalg.eigh(c.T @ c / 2000)[0]


def kernel_ridge(xp: Any, x: Any, y: Any) -> Any:
    k = xp.exp(-0.5 * _squares(xp, x, x))
    return k @ xp.linalg.solve(k + xp.eye(150, dtype=x.dtype), y)


def soft_tree(xp: Any, x: Any, w: Any, leaves: Any) -> Any:
    p = xp.sigmoid(x @ w.T)
    found, at = p[:, :1] * 0 + 1, 0
    for depth in range(4):
        own = p[:, at : at + 2**depth]
        found = xp.stack([found * own, found * (1 - own)], 2).reshape(3000, -1)
        at += 2**depth
    return found @ leaves


def gradient_histogram(xp: Any, x: Any, g: Any) -> Any:
    at = xp.cast(x, "int64") + xp.arange(6) * 32
    sums = xp.added(g[:192] * 0, at.reshape(-1), xp.repeat(g, 6, 0))
    return xp.cumsum(sums.reshape(6, 32), 1)


def auc(xp: Any, x: Any, y: Any) -> Any:
    ranks = xp.argsort(xp.argsort(x)) + 1
    n = y.sum()
    own = xp.where(y, ranks, 0).sum()
    return (own - n * (n + 1) / 2) / (n * (10000 - n))


def confusion(xp: Any, x: Any, y: Any) -> Any:
    zeros = xp.cast(xp.arange(49) * 0, "int64")
    counts = xp.added(zeros, x * 7 + y, x * 0 + 1).reshape(7, 7)
    return xp.diagonal(counts) / counts.sum(1)


def fm(xp: Any, x: Any, v: Any, w: Any) -> Any:
    s = x @ v
    return x @ w + 0.5 * (s * s - (x * x) @ (v * v)).sum(1)
