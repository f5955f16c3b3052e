"""The model of a configuration in PyTorch, for tools/compare/pytorch_step.py: its parts, and the choice among the fused
attentions and grouped products that this PyTorch has.

Where PyTorch leaves a choice, it is the one that Weft makes, so that both do the same work: between blocks values have the
type of precision.compute, norms and losses are float32 inside, the router is float32.
"""
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# Shapes: B sequences of S tokens, T = B S, H hidden, D head_dim, E experts, K choices a token, I width of a MLP.


class Norm(nn.Module):
    def __init__(self, width, eps, device):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device=device))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def rotary_table(length, head_dim, theta, device):
    """Cosines and sines of position * theta^(-2i/D), each [S, 1, D/2] float32."""
    rates = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)
    angles = torch.arange(length, dtype=torch.float64, device=device)[:, None, None] * rates
    return angles.cos().float(), angles.sin().float()


def rotate(x, cosines, sines):
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1).to(x.dtype)


def expand_heads(k, v, groups):
    return k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def explicit_attention(q, k, v):
    """Where this PyTorch has no fused one (before 2.0). [B, heads, S, D]"""
    k, v = expand_heads(k, v, q.shape[1] // k.shape[1])
    length = q.shape[2]
    mask = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(q.shape[3]))
    return scores.masked_fill(mask, float("-inf")).softmax(-1).to(v.dtype) @ v


def fused_attention(q, k, v):
    if q.shape[1] == k.shape[1]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def fused_attention_expanded(q, k, v):
    return F.scaled_dot_product_attention(q, *expand_heads(k, v, q.shape[1] // k.shape[1]), is_causal=True)


def allow_attention(name):
    """The one implementation that scaled_dot_product_attention may take on a GPU, in this process."""
    backends = torch.backends.cuda
    backends.enable_math_sdp(False)
    backends.enable_mem_efficient_sdp(False)
    backends.enable_flash_sdp(name == "flash")
    if hasattr(backends, "enable_cudnn_sdp"):
        backends.enable_cudnn_sdp(name == "cudnn")


def choose_attention(config, device, dtype, wanted):
    """The first of cuDNN's and the flash kernels that takes these shapes, by trying; (name, function)."""
    if not hasattr(F, "scaled_dot_product_attention"):
        return "explicit", explicit_attention
    grouped = fused_attention if "enable_gqa" in (F.scaled_dot_product_attention.__doc__ or "") else None
    if device.type == "cpu":
        return "fused", grouped or fused_attention_expanded
    model, refusals = config.model, []
    if dtype == torch.float32:
        return "efficient", fused_attention_expanded  # the only fused one that takes float32
    for name in [wanted] if wanted else ["cudnn", "flash"]:
        allow_attention(name)
        for function in filter(None, [grouped, fused_attention_expanded]):
            heads = [model.num_attention_heads, model.num_key_value_heads, model.num_key_value_heads]
            q, k, v = (torch.zeros(1, 256, n, model.head_dim, device=device, dtype=dtype, requires_grad=True)
                       .transpose(1, 2) for n in heads)
            try:
                function(q, k, v).sum().backward()
                return name, function
            except RuntimeError as error:
                refusals.append(f"{name}: {str(error).splitlines()[0]}")
    sys.exit("pytorch_step.py: no fused attention takes this model:\n  " + "\n  ".join(refusals))


class Attention(nn.Module):
    def __init__(self, model, attention, device):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        self.attention = attention
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.qkv = nn.Linear(model.hidden_size, q + 2 * kv, bias=False, device=device)
        self.o = nn.Linear(q, model.hidden_size, bias=False, device=device)
        self.q_norm = Norm(self.head_dim, model.rms_norm_eps, device) if model.qk_norm else nn.Identity()
        self.k_norm = Norm(self.head_dim, model.rms_norm_eps, device) if model.qk_norm else nn.Identity()

    def forward(self, x, cosines, sines):
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, -1, self.head_dim)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], 2)
        q, k = rotate(self.q_norm(q), cosines, sines), rotate(self.k_norm(k), cosines, sines)
        out = self.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.o(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, hidden, width, device):
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * width, bias=False, device=device)
        self.down = nn.Linear(width, hidden, bias=False, device=device)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Permute(torch.autograd.Function):
    """Rows in another order. Autograd's own gradient of x[order] adds rows atomically; a permutation need not."""

    @staticmethod
    def forward(context, x, order, inverse):
        context.save_for_backward(inverse)
        return x[order]

    @staticmethod
    def backward(context, gradient):
        (inverse,) = context.saved_tensors
        return gradient[inverse], None, None


GROUPED_MM = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def grouped_products(x, weights, ends):
    """[rows, N]: rows ends[e-1]..ends[e] of x [rows, M], times weights[e]^T [M, N]."""
    return GROUPED_MM(x, weights.transpose(1, 2), offs=ends)


def looped_products(x, weights, ends):
    ends = ends.tolist()
    return torch.cat([x[begin:end] @ weight.t() for begin, end, weight in zip([0] + ends, ends, weights)])


def choose_products(config, device, dtype):
    """Grouped products if this PyTorch has them for this device and they agree with the loop; (name, function)."""
    if GROUPED_MM is None:
        return "loop", looped_products
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(45, 64, generator=generator).to(device, dtype)
    weights = torch.randn(4, 32, 64, generator=generator).to(device, dtype)
    ends = torch.tensor([13, 13, 20, 45], dtype=torch.int32, device=device)  # uneven, one of them empty
    results = []
    try:
        for products in (looped_products, grouped_products):
            inputs = [x.clone().requires_grad_(), weights.clone().requires_grad_()]
            y = products(*inputs, ends)
            y.square().sum().backward()
            results.append([y] + [tensor.grad for tensor in inputs])
        agree = all(((a - b).norm() <= 0.02 * b.norm()).item() for b, a in zip(*results))
    except (RuntimeError, NotImplementedError, TypeError):
        agree = False
    return ("grouped", grouped_products) if agree else ("loop", looped_products)


class Moe(nn.Module):
    def __init__(self, model, products, device):
        super().__init__()
        moe, hidden = model.moe, model.hidden_size
        self.moe, self.products = moe, products
        self.router = nn.Linear(hidden, moe.num_experts, bias=False, device=device)
        width = moe.moe_intermediate_size
        self.gate_up = nn.Parameter(torch.empty(moe.num_experts, 2 * width, hidden, device=device))
        self.down = nn.Parameter(torch.empty(moe.num_experts, hidden, width, device=device))
        shared = moe.shared_expert_intermediate_size
        self.shared = Mlp(hidden, shared, device) if shared else None

    def forward(self, x):
        """[B, S, H] -> the same, and what is added to the loss, a mean over the sequences."""
        moe, (batch, length, hidden) = self.moe, x.shape
        experts, choices = moe.num_experts, moe.num_experts_per_tok
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.float(), self.router.weight)
            scores = logits.softmax(-1) if moe.scoring == "softmax" else logits.sigmoid()
            weights, indices = scores.topk(choices, -1)
            chosen = (indices.unsqueeze(-1) == torch.arange(experts, device=x.device)).sum(-2)  # [B, S, E]
            if moe.norm_topk_prob:
                weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
            extra = self.extra_loss(logits, scores, chosen.sum(1).float())
        order = indices.reshape(-1).argsort(stable=True)
        inverse = order.argsort()
        ends = chosen.sum((0, 1)).cumsum(0).to(torch.int32)
        rows = x.reshape(-1, 1, hidden).expand(-1, choices, -1).reshape(-1, hidden)
        gate, up = self.products(Permute.apply(rows, order, inverse), self.gate_up.to(x.dtype), ends).chunk(2, -1)
        rows = Permute.apply(self.products(F.silu(gate) * up, self.down.to(x.dtype), ends), inverse, order)
        y = (rows.view(batch, length, choices, hidden).float() * weights.unsqueeze(-1)).sum(2).to(x.dtype)
        return (y if self.shared is None else y + self.shared(x)), extra

    def extra_loss(self, logits, scores, counts):
        """layers/kernels/routing.h; counts [B, E]."""
        moe, length = self.moe, scores.shape[1]
        extra = moe.router_z_loss_coef * logits.logsumexp(-1).square().mean()
        if moe.scoring != "softmax":
            scores = scores / scores.sum(-1, keepdim=True)
        balance = (scores.sum(1) * counts).sum(-1).mean()
        factor = moe.router_aux_loss_coef * moe.num_experts / (moe.num_experts_per_tok * length * length)
        return extra + factor * balance


class Block(nn.Module):
    def __init__(self, kind, model, attention, products, device):
        super().__init__()
        self.attention_norm = Norm(model.hidden_size, model.rms_norm_eps, device)
        self.attention = Attention(model, attention, device)
        self.mlp_norm = Norm(model.hidden_size, model.rms_norm_eps, device)
        self.is_moe = kind == "e"
        self.mlp = Moe(model, products, device) if self.is_moe else Mlp(model.hidden_size, model.intermediate_size, device)

    def forward(self, x, cosines, sines):
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        if not self.is_moe:
            return x + self.mlp(self.mlp_norm(x)), None
        y, extra = self.mlp(self.mlp_norm(x))
        return x + y, extra


class Head(nn.Module):
    def __init__(self, model, device):
        super().__init__()
        self.norm = Norm(model.hidden_size, model.rms_norm_eps, device)
        self.projection = nn.Linear(model.hidden_size, model.vocab_size, bias=False, device=device)

    def forward(self, x, targets):
        return F.cross_entropy(self.projection(self.norm(x)).float().flatten(0, 1), targets.flatten())


class Model(nn.Module):
    def __init__(self, config, layers, attention, products, device, dtype):
        super().__init__()
        model = config.model
        self.dtype, self.checkpointed = dtype, False
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size, device=device)
        self.blocks = nn.ModuleList([Block(kind, model, attention, products, device) for kind in layers])
        self.head = Head(model, device)
        self.rotary = rotary_table(config.training.sequence_length, model.head_dim, model.rope_theta, device)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, model.initializer_range)

    def forward(self, tokens, targets):
        """[B, S] -> the mean loss of a token, and what the routers add to it."""
        x, extra = self.embedding(tokens).to(self.dtype), 0.0
        for block in self.blocks:
            if self.checkpointed:
                x, more = checkpoint(block, x, *self.rotary, use_reentrant=False)
            else:
                x, more = block(x, *self.rotary)
            extra = extra if more is None else extra + more
        return self.head(x, targets), extra


def compile_parts(model):
    """Block by block: those of a kind share one compilation, and a deep model starts as soon as a shallow one."""
    for part in [*model.blocks, model.head]:
        part.compile(dynamic=False)
