"""JAX programs that train, transform functions, draw random numbers, and use JAX's linear algebra, sorting
and indexing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .jax_table import normal, program

SEED = np.int32(3)
PLACES = np.array([3, 1, 3], np.int32)
LABELS = np.array([0, 2, 1, 1, 0, 2], np.int32)

# -- Training ------------------------------------------------------------------------------------------------

PARAMETERS = {"w": normal(4, 8), "b": normal(8), "out": normal(8, 3)}
ZEROS = jax.tree.map(np.zeros_like, PARAMETERS)


def _loss(p, x, labels):
    logits = jax.nn.relu(x @ p["w"] + p["b"]) @ p["out"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


@program(PARAMETERS, ZEROS, normal(6, 4), LABELS, backward=False)
def momentum_step(p, velocity, x, labels):
    value, grads = jax.value_and_grad(_loss)(p, x, labels)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - 0.1 * v, p, velocity), velocity, value


@program(PARAMETERS, ZEROS, ZEROS, np.int32(3), normal(6, 4), LABELS, backward=False)
def adam_step(p, first, second, count, x, labels):
    grads = jax.grad(_loss)(p, x, labels)
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1, 0.5 / norm), grads)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    count = count + 1
    scale = jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    p = jax.tree.map(lambda p, m, v: p - 0.01 * scale * m / (jnp.sqrt(v) + 1e-8), p, first, second)
    return p, first, second, count


# -- Transformations -----------------------------------------------------------------------------------------


@program(normal(5, 3, 3))
def mapped_inverse(x):
    return jax.vmap(lambda a: jnp.linalg.inv(a @ a.T + jnp.eye(3)))(x)


@program(normal(7, 3))
def mapped_rows(x):
    return lax.map(lambda row: jnp.cumsum(row) * row.sum(), x), lax.map(
        lambda row: jnp.sin(row).sum(), x, batch_size=3
    )


@program(normal(9, 3), normal(9, 3))
def associative_scans(a, b):
    linear = lax.associative_scan(lambda l, r: (l[0] * r[0], l[1] * r[0] + r[1]), (a, b))
    return linear, lax.associative_scan(jnp.maximum, a, reverse=True)


@program(normal(4, 3), backward=False)
def jacobians(x):
    def f(a):
        return jnp.tanh(a).sum(0)

    return (
        jax.jacfwd(f)(x),
        jax.jacrev(f)(x),
        jax.hessian(lambda a: (a**3).sum())(x[0]),
        jax.jvp(f, (x,), (x,)),
    )


@program(normal(4, 3), normal(3))
def rematerialized(x, w):
    return jax.checkpoint(lambda w: jnp.sin(jnp.sin(x @ w)))(w)


# -- Windows, sorting, places --------------------------------------------------------------------------------


@program(normal(2, 9, 9, 3), backward=False)
def windows(x):
    spread = ((0, 0), (1, 1), (1, 1), (0, 0))
    dilated = lax.reduce_window(
        x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), spread, window_dilation=(1, 2, 2, 1)
    )
    other = lax.reduce_window(x[0, :, :, 0], -jnp.inf, jnp.logaddexp, (3, 2), (1, 1), "VALID")
    return dilated, other, lax.reduce_window(x[0, :, :, 0], 1.0, lax.mul, (3, 1), (2, 1), "SAME")


@program(np.arange(20, dtype=np.int32) * 7 % 3, normal(20), normal(20))
def sorted_by_several_keys(a, b, c):
    return lax.sort((a, b, c), num_keys=2), jnp.lexsort((c, b, a)), jnp.argsort(b, descending=True)


@program(normal(20))
def order_statistics(x):
    return jnp.median(x), jnp.quantile(x, jnp.array([0.1, 0.7])), jnp.percentile(x, 30, method="nearest")


@program(normal(20), backward=False)
def binned(x):
    s = jnp.sort(x)
    return jnp.searchsorted(s, x[:5]), jnp.digitize(x, jnp.array([-1.0, 0, 1])), jnp.histogram(x, 5), s


@program(LABELS, backward=False)
def counted(x):
    return jnp.unique(x, size=4, fill_value=-1), jnp.bincount(x, length=4), jnp.nonzero(x > 0, size=5)


@program(normal(10), PLACES, normal(3), backward=False)
def updated_places(x, i, u):
    at = x.at[i]
    flags = (x > 0).at[i]
    return at.add(u), at.multiply(u), at.min(u), at.apply(jnp.cos), flags.max(True), flags.min(False)


@program(normal(6, 3), LABELS)
def segments(x, i):
    return jax.ops.segment_sum(x, i, 3), jax.ops.segment_max(x, i, 3)


@program(normal(6, 5), backward=False)
def resized(x):
    at = [jnp.array([1.5, 2.2]), jnp.array([0.3, 3.9])]
    return (
        *(jax.image.resize(x, (9, 7), kind) for kind in ("bilinear", "nearest", "cubic")),
        jax.scipy.ndimage.map_coordinates(x, at, 1),
    )


# -- Random numbers ------------------------------------------------------------------------------------------


@program(SEED, normal(4, 6), backward=False)
def distributions(seed, logits):
    keys = jax.random.split(jax.random.key(seed), 6)
    return (
        jax.random.categorical(keys[0], logits, shape=(3, 4)),
        jax.random.choice(keys[1], 10, (4,), replace=False),
        jax.random.truncated_normal(keys[2], -1.0, 2.0, (5,)),
        jax.random.gumbel(keys[3], (5,)),
        jax.random.laplace(keys[4], (5,)),
        jax.random.exponential(keys[5], (5,)),
    )


@program(SEED, backward=False)
def rejection_sampling(seed):
    a, b, c = jax.random.split(jax.random.key(seed), 3)
    return (
        jax.random.gamma(a, 2.5, (6,)),
        jax.random.poisson(b, 3.5, (6,)),
        jax.random.dirichlet(c, jnp.ones(3)),
    )


@program(SEED, normal(10, 2), backward=False)
def generator_of_the_hardware(seed, x):
    a, b = jax.random.split(jax.random.key(seed, impl="rbg"))
    return jax.random.normal(a, (3, 5)), jax.random.permutation(b, x)


# -- Linear algebra ------------------------------------------------------------------------------------------


@program(normal(6, 4))
def orthogonal_and_triangular(x):
    q, r = jnp.linalg.qr(x)
    return q @ r, jnp.abs(r)


@program(normal(6, 4))
def singular_values(x):
    u, s, v = jnp.linalg.svd(x, full_matrices=False)
    return s, (u * s) @ v, jnp.linalg.svd(x, compute_uv=False)


@program(normal(5, 5))
def eigenvalues(x):
    values, vectors = jnp.linalg.eigh(x @ x.T + jnp.diag(jnp.arange(5.0)))
    return values, (vectors * values) @ vectors.T


@program(normal(4, 4))
def matrix_functions(x):
    return jax.scipy.linalg.expm(0.3 * x), jnp.linalg.matrix_power(x, 5), jnp.linalg.det(x)


@program(normal(6, 4), normal(6, 2), backward=False)
def least_squares(a, b):
    return jnp.linalg.lstsq(a, b)[0], jnp.linalg.pinv(a), jnp.linalg.matrix_rank(a), jnp.linalg.cond(a)


@program(normal(5, 5), normal(5, 5), normal(5, 2))
def complex_systems(a, b, c):
    z, right = lax.complex(a, b), lax.complex(c, c[::-1])
    hermitian = z @ z.conj().T + jnp.eye(5)
    factor = jnp.linalg.cholesky(hermitian)
    return (
        factor,
        jax.scipy.linalg.cho_solve((factor, True), right),
        jnp.linalg.solve(z + 3 * jnp.eye(5), right),
    )


# -- Others --------------------------------------------------------------------------------------------------


@program(normal(3, 4))
def more_special_functions(x):
    y, inside = jnp.abs(x) + 0.5, jax.nn.sigmoid(x)
    special = jax.scipy.special
    return special.gammainc(y, 2.0), special.betainc(1.5, 2.5, inside), special.ndtri(inside), special.i0e(y)


@program(normal(2, 8, 4, 16), normal(2, 8, 2, 16), normal(2, 8, 2, 16))
def grouped_query_attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


@program(normal(5, 6), backward=False)
def products_of_groups(x):
    return lax.ragged_dot(x, jnp.ones((2, 6, 3)), jnp.array([2, 3]))
