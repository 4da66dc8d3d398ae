"""Operators of every family, as small functions that are compared with eager torch, with fixed and with
dynamic first dimension.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from .checks import check, random  # noqa: E402

X, Y = random(3, 4), random(3, 4, seed=1)
P = random(3, 4, seed=2).abs() + 0.1
U = random(3, 4, seed=3).clamp(-0.9, 0.9)
I, J = random(3, 4, dtype=torch.int64), random(3, 4, seed=4, dtype=torch.int64)
B = random(3, 4, dtype=torch.bool)
IMAGE = random(2, 6, 9, 8)
SEQUENCE = random(2, 6, 9)
VOLUME = random(2, 4, 5, 6, 5)

POINTWISE: dict[str, tuple[Any, Any]] = {
    **{
        name: (getattr(torch, name), X)
        for name in "abs neg sign ceil floor trunc round exp exp2 expm1 sin cos tan sinh cosh "
        "tanh atan erf erfc "
        "sigmoid square "
        "isnan isinf isfinite sgn frac".split()
    },
    **{
        name: (getattr(torch, name), P) for name in "sqrt rsqrt log log2 log10 log1p reciprocal asinh".split()
    },
    **{name: (getattr(torch, name), U) for name in "asin acos atanh".split()},
    "acosh": (torch.acosh, P + 1),
    "sqrt_int": (lambda x: torch.sqrt(x.abs()), I),
    "exp_int": (torch.exp, I),
    "logical_not": (torch.logical_not, I),
    "bitwise_not": (torch.bitwise_not, I),
    "not_bool": (lambda x: ~x, B),
    "nan_to_num": (lambda x: torch.nan_to_num(torch.log(x), nan=1.0, neginf=-5.0), X),
    "round_decimals": (lambda x: torch.round(x, decimals=2), X),
    "to_int": (lambda x: (x * 3).to(torch.int32), X),
    "to_bool": (lambda x: x.bool(), I),
    "to_half": (lambda x: x.half() * 2, X),
    "to_bfloat16": (lambda x: (x.bfloat16() * 3).float(), X),
    "type_as": (lambda x: torch.ones(4).type_as(x) * x, I),
    "relu": (F.relu, X),
    "relu6": (lambda x: F.relu6(x * 5), X),
    "silu": (F.silu, X),
    "gelu": (F.gelu, X),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), X),
    "elu": (lambda x: F.elu(x, 1.3), X),
    "selu": (F.selu, X),
    "celu": (lambda x: F.celu(x, 0.7), X),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), X),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 0.7), X),
    "hardsigmoid": (F.hardsigmoid, X),
    "hardswish": (F.hardswish, X),
    "mish": (F.mish, X),
    "softplus": (lambda x: F.softplus(x * 10, 2.0, 5.0), X),
    "logsigmoid": (F.logsigmoid, X),
    "softsign": (F.softsign, X),
    "tanhshrink": (F.tanhshrink, X),
    "hardshrink": (F.hardshrink, X),
    "softshrink": (F.softshrink, X),
    "threshold": (lambda x: F.threshold(x, 0.1, 5.0), X),
    "glu": (lambda x: F.glu(x, 1), X),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), X),
    "clamp_min": (lambda x: x.clamp(min=0.2), X),
    "clamp_max": (lambda x: x.clamp(max=0.2), X),
    "clamp_int": (lambda x: x.clamp(-2, 3), I),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False), X),
    "pow_2": (lambda x: x**2, X),
    "pow_half": (lambda x: x**0.5, P),
    "pow_base": (lambda x: 2.0**x, X),
    "pow_int": (lambda x: x**3, I),
    "add_scalar": (lambda x: x + 2, X),
    "add_float_to_int": (lambda x: x + 2.5, I),
    "rsub": (lambda x: 1.0 - x, X),
    "div_int": (lambda x: x / 2, I),
    "floordiv_scalar": (lambda x: x // 2, I),
    "remainder_scalar": (lambda x: x % 3, I),
    "compare_scalar": (lambda x: (x > 0) & (x <= 2.5), I),
    "bool_arithmetic": (lambda x: x * x + x, B),
    "bool_sum": (lambda x: x.sum(1), B),
}
BINARY: dict[str, Any] = {
    "add": torch.add,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=0.5),
    "sub_alpha": lambda x, y: torch.sub(x, y, alpha=2),
    "mul": torch.mul,
    "div": torch.div,
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": lambda x, y: x.abs() ** y,
    "atan2": torch.atan2,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "where": lambda x, y: torch.where(x > y, x, y),
    "where_scalar": lambda x, y: torch.where(x > y, x, 0.0),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, float("-inf")),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    "logical": lambda x, y: torch.logical_and(x, y) ^ torch.logical_or(x, y),
    "hypot": torch.hypot,
    "broadcast": lambda x, y: x[:, :1] * y[:1, :],
    "promote": lambda x, y: x.to(torch.int32) * y,
    "clamp_tensor": lambda x, y: x.clamp(min=y),
}
INTEGER: dict[str, Any] = {
    "bitwise": lambda x, y: (x & y) | (x ^ 3),
    "shift": lambda x, y: (x << 2) + (y >> 1),
    "floor_divide": lambda x, y: torch.floor_divide(x, y.abs() + 1),
    "div_trunc": lambda x, y: torch.div(x, y.abs() + 2, rounding_mode="trunc"),
    "true_div": lambda x, y: x / (y.abs() + 1),
    "int32_with_int64": lambda x, y: x.to(torch.int32) + y,
    "compare_mixed": lambda x, y: x.float() >= y,
    "minimum": torch.minimum,
}
SHAPES: dict[str, Any] = {
    "view": lambda x: x.view(x.shape[0], 6, -1),
    "reshape_all": lambda x: x.reshape(-1),
    "flatten": lambda x: torch.flatten(x, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "permute": lambda x: x.permute(0, 3, 1, 2),
    "transpose": lambda x: x.transpose(-1, 1),
    "squeeze": lambda x: x[:, :1].squeeze(1).unsqueeze(-1),
    "movedim": lambda x: x.movedim(1, -1),
    "expand": lambda x: x[:, :1].expand(-1, 6, -1, -1),
    "slice": lambda x: x[:, 1:-1, ::2, -3:],
    "select": lambda x: x[:, -1] + x.select(1, 2),
    "split": lambda x: torch.cat(x.split(4, 2)[::-1], 2),
    "split_sizes": lambda x: torch.split(x, [1, 2, 3], 1)[2],
    "chunk": lambda x: x.chunk(4, 2)[1],
    "unbind": lambda x: x.unbind(1)[3],
    "stack": lambda x: torch.stack([x, x * 2], -1),
    "cat": lambda x: torch.cat([x, x.flip(1)], 1),
    "cat_promote": lambda x: torch.cat([x, torch.ones_like(x, dtype=torch.int64)], 1),
    "flip": lambda x: x.flip(1, -1),
    "roll": lambda x: x.roll((2, -1), (1, 3)),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "repeat_new": lambda x: x.repeat(2, 1, 1, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    "pad_crop": lambda x: F.pad(x, (-1, 2)),
    "pad_reflect": lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect"),
    "pad_replicate": lambda x: F.pad(x, (2, 1, 1, 3), mode="replicate"),
    "pad_circular": lambda x: F.pad(x, (2, 1, 1, 3), mode="circular"),
    "pad_circular_crop": lambda x: F.pad(x, (-1, 1, 2, -2), mode="circular"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :4], 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :8], 2),
    "meshgrid": lambda x: sum(torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0], indexing="ij")),
    "tril": lambda x: x.tril(1) + x.triu(-1),
    "unfold": lambda x: x.unfold(2, 3, 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "bilinear": lambda x: F.interpolate(x, size=(12, 20), mode="bilinear", align_corners=False),
    "arange": lambda x: x + torch.arange(x.shape[-1]) * 2.0 + torch.arange(1.0, 2.0, 0.125),
    "full": lambda x: torch.full((x.shape[0], 2), 3.5) + x.new_ones(2) + torch.zeros_like(x[:, :2, 0, 0]),
    "linspace": lambda x: x + torch.linspace(-1, 1, 8),
    "eye": lambda x: x @ torch.eye(8),
    "size_as_number": lambda x: x * x.shape[0] + x.shape[0] // 2,
    "size_as_tensor": lambda x: x + torch.tensor(x.shape[2]),
}
REDUCTIONS: dict[str, Any] = {
    "sum": lambda x: x.sum(),
    "sum_dims": lambda x: x.sum((1, -1), keepdim=True),
    "mean": lambda x: x.mean((2, 3)),
    "mean_batch": lambda x: x.mean(0),
    "prod": lambda x: x.prod(1),
    "prod_of_truth_values": lambda x: (x > 0).prod(1, dtype=torch.bool),
    "sum_of_truth_values": lambda x: (x > 0).sum(1, dtype=torch.bool),
    "amax": lambda x: x.amax((1, 2)) - x.amin(3).sum((1, 2))[:, None],
    "max": lambda x: x.max() - x.min(),
    "max_dim": lambda x: x.max(2),
    "min_dim": lambda x: x.min(-1, keepdim=True),
    "argmax": lambda x: x.argmax(1),
    "argmin_all": lambda x: x.argmin(),
    "any": lambda x: (x > 1.5).any(1) & (x > -5).all(),
    "var": lambda x: x.var((1, 2)),
    "var_biased": lambda x: x.var(1, unbiased=False),
    "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: x.norm(dim=1) + torch.linalg.vector_norm(x, ord=1, dim=1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "norm_3": lambda x: torch.linalg.vector_norm(x, ord=3.0, dim=-1),
    "norm_max": lambda x: torch.linalg.vector_norm(x, ord=float("inf"), dim=-1),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum_bool": lambda x: (x > 0).cumsum(-1),
    "cumprod": lambda x: x.cumprod(2),
    "diff": lambda x: x.diff(dim=2, prepend=x[:, :, :1]),
    "softmax": lambda x: x.softmax(1),
    "softmax_of_numbers": lambda x: x.sum().softmax(0) + x.sum().log_softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmax_dtype": lambda x: F.softmax(x.half(), -1, dtype=torch.float32),
    "topk": lambda x: x.topk(3, 2),
    "sort": lambda x: x.sort(-1, descending=True),
    "argsort": lambda x: x.argsort(1),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1, dim=1),
    "mse": lambda x: F.mse_loss(x, x * 2),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str) -> None:
    function, x = POINTWISE[name]
    check(function, x, rtol=1e-3 if "half" in name or "bfloat" in name else 1e-4)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    check(BINARY[name], X, Y)


@pytest.mark.parametrize("name", INTEGER)
def test_integer(name: str) -> None:
    check(INTEGER[name], I, J)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    check(SHAPES[name], IMAGE[:, :, :8])


DYNAMIC = {name: f for table in (SHAPES, REDUCTIONS) for name, f in table.items() if name != "full"}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_batch(name: str) -> None:
    x = random(3, 6, 8, 8)
    others = [(random(n, 6, 8, 8, seed=n),) for n in (1, 4)]
    # All sizes are above 1: the variance of one element is NaN in torch too.
    check(DYNAMIC[name], x, dims={"x": {0: "batch<=6"}}, others=others)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    check(REDUCTIONS[name], IMAGE)


CONTRACTIONS: dict[str, tuple[Any, ...]] = {
    "matmul": (torch.matmul, random(2, 3, 4, 5), random(3, 5, 6)),
    "matmul_vector": (torch.matmul, random(2, 4, 5), random(5)),
    "vector_matmul": (torch.matmul, random(5), random(2, 5, 4)),
    "dot": (torch.matmul, random(5), random(5, seed=1)),
    "mm": (torch.mm, random(3, 4), random(4, 5)),
    "bmm": (torch.bmm, random(2, 3, 4), random(2, 4, 5)),
    "addmm": (
        lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2.0),
        random(5),
        random(3, 4),
        random(4, 5),
    ),
    "baddbmm": (
        lambda x, y, z: torch.baddbmm(x, y, z, alpha=0.3),
        random(2, 3, 5),
        random(2, 3, 4),
        random(2, 4, 5),
    ),
    "outer": (torch.outer, random(3), random(4)),
    "bilinear": (F.bilinear, random(2, 3), random(2, 4), random(5, 3, 4)),
    "linear": (F.linear, random(2, 3, 4), random(5, 4), random(5)),
    "linear_vector": (F.linear, random(4), random(5, 4)),
    "einsum": (lambda x, y: torch.einsum("bhsd,bhtd->bhst", x, y), random(2, 3, 4, 5), random(2, 3, 6, 5)),
    "einsum_one": (lambda x: torch.einsum("ijk->kji", x), random(2, 3, 4)),
    "einsum_trace": (lambda x: torch.einsum("ii->i", x), random(4, 4)),
    "einsum_ellipsis": (lambda x, y: torch.einsum("...ij,jk->...ik", x, y), random(2, 3, 4), random(4, 5)),
    "einsum_three": (
        lambda x, y, z: torch.einsum("ab,bc,cd->ad", x, y, z),
        random(2, 3),
        random(3, 4),
        random(4, 5),
    ),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=([1], [0])), random(2, 3), random(3, 4)),
    "cdist": (lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1), random(3, 4), random(5, 4)),
    "integers": (torch.matmul, I, J.t().contiguous()),
    "sdpa": (
        F.scaled_dot_product_attention,
        random(2, 4, 5, 8),
        random(2, 4, 6, 8),
        random(2, 4, 6, 8, seed=1),
    ),
    "sdpa_causal": (
        lambda x, y, z: F.scaled_dot_product_attention(x, y, z, is_causal=True, scale=0.3),
        random(2, 4, 6, 8),
        random(2, 4, 6, 8, seed=2),
        random(2, 4, 6, 8, seed=1),
    ),
    "sdpa_gqa": (
        lambda x, y, z: F.scaled_dot_product_attention(x, y, z, enable_gqa=True),
        random(2, 4, 5, 8),
        random(2, 2, 6, 8),
        random(2, 2, 6, 8, seed=1),
    ),
    "sdpa_mask": (
        lambda x, y, z: F.scaled_dot_product_attention(
            x, y, z, attn_mask=(y[:, :1, :, 0] > 0)[:, :, None].expand(2, 1, 5, 6)
        ),
        random(2, 4, 5, 8),
        random(2, 4, 6, 8),
        random(2, 4, 6, 8, seed=1),
    ),
    "sdpa_hidden_row": (
        lambda x, y, z: F.scaled_dot_product_attention(x, y, z, attn_mask=torch.ones(6, 6).triu(1).bool()),
        random(2, 4, 6, 8),
        random(2, 4, 6, 8, seed=2),
        random(2, 4, 6, 8, seed=1),
    ),
    "sdpa_rank_3": (
        lambda x, y, z: F.scaled_dot_product_attention(x, y, z, attn_mask=x[..., :1] * y[..., :1].mT),
        random(2, 5, 8),
        random(2, 6, 8),
        random(2, 6, 8, seed=1),
    ),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions(name: str) -> None:
    function, *inputs = CONTRACTIONS[name]
    check(function, *inputs)


N = torch.nn
LAYERS: dict[str, tuple[Any, Any]] = {
    "conv2d": (lambda: N.Conv2d(6, 4, 3, padding=1), IMAGE),
    "conv2d_strided": (
        lambda: N.Conv2d(6, 4, (3, 2), stride=2, padding=(0, 1), dilation=(2, 1), bias=False),
        IMAGE,
    ),
    "conv2d_groups": (lambda: N.Conv2d(6, 9, 3, groups=3), IMAGE),
    "conv2d_depthwise": (lambda: N.Conv2d(6, 12, 3, groups=6, padding=1), IMAGE),
    "conv2d_same": (lambda: N.Conv2d(6, 4, (3, 4), padding="same"), IMAGE),
    "conv2d_reflect": (lambda: N.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), IMAGE),
    "conv2d_unbatched": (lambda: N.Conv2d(6, 4, 3), IMAGE[0]),
    "conv1d": (lambda: N.Conv1d(6, 4, 3, stride=2, padding=1), SEQUENCE),
    "conv3d": (lambda: N.Conv3d(4, 3, 2, padding=1), VOLUME),
    "conv_transpose2d": (lambda: N.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "conv_transpose2d_groups": (lambda: N.ConvTranspose2d(6, 4, 3, groups=2, dilation=2), IMAGE),
    "conv_transpose1d": (lambda: N.ConvTranspose1d(6, 4, 4, stride=3), SEQUENCE),
    "max_pool2d": (lambda: N.MaxPool2d(3, 2, padding=1), IMAGE),
    "max_pool2d_ceil": (lambda: N.MaxPool2d(2, ceil_mode=True), IMAGE),
    "max_pool2d_dilated": (lambda: N.MaxPool2d(2, stride=1, dilation=2), IMAGE),
    "max_pool1d": (lambda: N.MaxPool1d(3), SEQUENCE),
    "max_pool3d": (lambda: N.MaxPool3d(2), VOLUME),
    "avg_pool2d": (lambda: N.AvgPool2d(3, 2, padding=1), IMAGE),
    "avg_pool2d_exclude": (lambda: N.AvgPool2d(3, 2, padding=1, count_include_pad=False), IMAGE),
    "avg_pool2d_ceil": (lambda: N.AvgPool2d(2, ceil_mode=True), IMAGE),
    "avg_pool2d_divisor": (lambda: N.AvgPool2d(2, divisor_override=3), IMAGE),
    "avg_pool1d": (lambda: N.AvgPool1d(2), SEQUENCE),
    "adaptive_avg_pool2d": (lambda: N.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive_avg_pool2d_odd": (lambda: N.AdaptiveAvgPool2d((4, 3)), IMAGE),
    "adaptive_avg_pool1d": (lambda: N.AdaptiveAvgPool1d(3), SEQUENCE),
    "adaptive_max_pool2d": (lambda: N.AdaptiveMaxPool2d((3, 4)), IMAGE),
    "batch_norm": (lambda: N.BatchNorm2d(6), IMAGE),
    "batch_norm_plain": (lambda: N.BatchNorm2d(6, affine=False), IMAGE),
    "batch_norm_untracked": (lambda: N.BatchNorm2d(6, track_running_stats=False), IMAGE),
    "layer_norm": (lambda: N.LayerNorm(8), IMAGE),
    "layer_norm_two": (lambda: N.LayerNorm((9, 8), elementwise_affine=False), IMAGE),
    "rms_norm": (lambda: N.RMSNorm(8), IMAGE),
    "group_norm": (lambda: N.GroupNorm(3, 6), IMAGE),
    "instance_norm": (lambda: N.InstanceNorm2d(6, affine=True), IMAGE),
    "local_response_norm": (lambda: N.LocalResponseNorm(2), IMAGE),
    "linear": (lambda: N.Linear(8, 5), IMAGE),
    "bilinear": (lambda: N.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "prelu": (lambda: N.PReLU(6), IMAGE),
    "channel_shuffle": (lambda: N.ChannelShuffle(3), IMAGE),
    "embedding": (lambda: N.Embedding(11, 4, padding_idx=0), random(2, 3, dtype=torch.int64).abs()),
    "multihead_attention": (lambda: SelfAttention(), random(2, 5, 8)),
    "transformer_layer": (
        lambda: N.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True),
        random(2, 5, 8),
    ),
    "lstm": (lambda: N.LSTM(4, 3, batch_first=True), random(2, 5, 4)),
    "gru": (lambda: N.GRU(4, 3), random(5, 2, 4)),
}


class SelfAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


def _layer(name: str) -> tuple[Any, Any]:
    make, x = LAYERS[name]
    torch.manual_seed(0)
    layer = make()
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * 0.5)
    return layer, x


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    layer, x = _layer(name)
    check(layer, x)


def test_layers_stay_whole() -> None:
    from .checks import operators

    for name, wanted in {
        "layer_norm": "graph.layer_norm",
        "rms_norm": "graph.rms_norm",
        "group_norm": "graph.group_norm",
        "instance_norm": "graph.group_norm",
        "batch_norm": "graph.batch_norm",
        "conv2d_same": "graph.conv",
        "multihead_attention": "graph.attention",
        "adaptive_avg_pool2d": "graph.adaptive_avg_pool",
    }.items():
        layer, x = _layer(name)
        assert operators(check(layer, x)).count(wanted) == 1, name
    assert "graph.gelu" in operators(check(F.gelu, X))
    assert "graph.silu" in operators(check(F.silu, X))


T = torch.tensor
INDEXING: dict[str, tuple[Any, ...]] = {
    "gather_rows": (lambda x, y: x[y], random(5, 4), T([[0, -1], [2, 2]])),
    "two_indices": (lambda x, y: x[y, y.flip(0)], random(5, 4), T([0, 1, 3])),
    "apart": (lambda x, y: x[y, :, y], random(4, 3, 4), T([0, 1, 3])),
    "inner": (lambda x, y: x[:, y, y.flip(0)], random(2, 4, 4, 3), T([0, 1, 3])),
    "broadcast": (lambda x, y: x[y[:, None], y[None, :]], random(5, 5), T([0, 1, 3])),
    "index_select": (lambda x, y: x.index_select(1, y), random(3, 5), T([4, 0])),
    "take_along_dim": (lambda x, y: torch.take_along_dim(x, y, 1), random(3, 5), T([[4, 0]])),
    "gather": (lambda x, y: x.gather(1, y), random(3, 5), T([[4, 0], [1, 1]])),
    "scatter": (lambda x, y: x.scatter(1, y, 2.0), random(3, 5), T([[4, 0], [1, 2]])),
    "scatter_src": (
        lambda x, y, z: x.scatter(1, y, z),
        random(3, 5),
        T([[4, 0], [1, 2]]),
        random(3, 5, seed=1),
    ),
    "scatter_add": (
        lambda x, y, z: x.scatter_add(1, y, z),
        random(3, 5),
        T([[4, 4], [1, 2]]),
        random(3, 5, seed=1),
    ),
    "scatter_reduce": (
        lambda x, y, z: x.scatter_reduce(1, y, z, "amax"),
        random(3, 5),
        T([[4, 4], [1, 2]]),
        random(3, 5, seed=1),
    ),
    "index_put": (lambda x, y, z: x.index_put((y, y), z), random(5, 4), T([0, 3]), random(2)),
    "index_put_add": (
        lambda x, y, z: x.index_put((y,), z, accumulate=True),
        random(5, 4),
        T([0, 3, 0]),
        random(3, 4),
    ),
    "index_put_inner": (
        lambda x, y, z: torch.ops.aten.index_put(x, [None, y], z),
        random(5, 4),
        T([0, 3]),
        random(2),
    ),
    "index_pairs": (lambda x, y, z: x[y, z], random(5, 4, 3), T([[4, -1], [0, -5]]), T([3, -2])),
    "index_pairs_inner": (lambda x, y, z: x[:, y, z], random(2, 5, 4, 3), T([4, -1, 2]), T([-4, 3, 0])),
    "index_all": (lambda x, y, z: x[y, z], random(5, 4), T([[4], [-2]]), T([3, -1, 0])),
    "index_outer": (lambda x, y, z: x[:, y[:, None], z], random(2, 5, 4), T([4, 0, 2]), T([3, 0])),
    "index_outer_first": (lambda x, y, z: x[y[:, None], z], random(5, 4, 3), T([4, -1, 2]), T([3, -2])),
    "index_outer_crossed": (lambda x, y, z: x[y, z[:, None]], random(5, 4, 3), T([4, 0, 2]), T([3, 0])),
    "index_apart": (lambda x, y, z: x[y[:, None], :, z], random(5, 4, 3), T([4, 0]), T([1, 2])),
    "mask_put": (lambda x: torch.ops.aten.index_put(x, [x > 0], torch.tensor(7.0)), X),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 1, 1, 3), random(3, 5), random(3, 2)),
    "select_scatter": (lambda x, y: x.select_scatter(y, 1, -2), random(3, 5), random(3)),
    "one_hot": (lambda x: F.one_hot(x, 5), T([[0, 4], [2, 2]])),
    "in_place": (lambda x, y: _assign(x, y), random(3, 5), random(3, 2)),
}


def _assign(x: Any, y: Any) -> Any:
    z = x.clone()
    z[:, 1:3] = y
    z[0] += 1
    z.mul_(2)
    return z


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str) -> None:
    function, *inputs = INDEXING[name]
    check(function, *inputs)
