#!/usr/bin/env python3
"""What a step of a configuration costs in PyTorch: the yardstick of tools/compare/step.sh.

Reads the TOML file that Weft reads and trains the model it describes on the text it names, as a careful user of PyTorch
would: float32 parameters under autocast, fused AdamW, fused attention, grouped products for experts, each block compiled.
One process stands for all ranks: a microbatch holds as many sequences as the data-parallel ranks take at a time together.

  tools/compare/pytorch_step.py CONFIG [--json] [--section.key=value ...]

Exit code 3: the GPU's memory did not hold it.

Where PyTorch leaves a choice, it is the one that Weft makes, so that both do the same work: between blocks values have the
type of precision.compute, norms and losses are float32 inside, the router is float32, weight decay leaves norms alone.
Windows of text are drawn at random; Weft draws its own, hence losses agree in trend, not in digits.
"""
import argparse
import json
import math
import os
import re
import resource
import sys
import time
from types import SimpleNamespace

# Blocks of different sizes come and go each step; without this the largest model here dies of fragments.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

try:
    import tomllib
except ImportError:  # before Python 3.11
    from pip._vendor import tomli as tomllib

PEAK_TFLOPS = 989.0  # H100 and H200, bfloat16 without sparsity

DEFAULTS = {  # as `weft keys` prints them
    "run": {"seed": 1234, "device": "cpu"},
    "model": {"intermediate_size": 0, "qk_norm": True, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
              "initializer_range": 0.02, "moe": {}},
    "parallelism": {"data_shard": 1, "data_replicate": 1},
    "precision": {"compute": "float32"},
    "training": {"sequence_length": 128, "global_batch_size": 8, "microbatch_size": 1, "max_grad_norm": 1.0},
    "optimizer": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1,
                  "momentum": 0.9, "state": "float32"},
    "lr_scheduler": {"warmup_steps": 0, "decay": "constant", "min_lr_ratio": 0.1, "decay_steps": 0},
    "data": {"train": []},
}
DEFAULT_MOE = {"shared_expert_intermediate_size": 0, "norm_topk_prob": True, "scoring": "softmax",
               "router_aux_loss_coef": 0.0, "router_z_loss_coef": 0.0}


def parse_value(text):
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # Weft, too, takes a bare word for a string


def read_config(path, overrides):
    with open(path, "rb") as file:
        config = tomllib.load(file)
    for override in overrides:
        match = re.fullmatch(r"--([\w.]+\.\w+)=(.*)", override, re.DOTALL)
        if match is None:
            sys.exit(f"pytorch_step.py: unknown argument {override}")
        *sections, key = match[1].split(".")
        table = config
        for section in sections:
            table = table.setdefault(section, {})
        table[key] = parse_value(match[2])
    sections = {name: {**values, **config.get(name, {})} for name, values in DEFAULTS.items()}
    sections["model"]["moe"] = SimpleNamespace(**{**DEFAULT_MOE, **sections["model"]["moe"]})
    return SimpleNamespace(**{name: SimpleNamespace(**values) for name, values in sections.items()})


def parse_layers(pattern):
    """ "d (d e)*2" -> "ddede": layers/model_config.h has the grammar. """
    text = pattern.replace(" ", "")
    repeated = re.compile(r"(?:([de])|\(([de]+)\))(?:\*(\d+))?")
    while re.search(r"[(*]", text):
        shorter = repeated.sub(lambda m: (m[1] or m[2]) * int(m[3] or 1), text)
        if shorter == text:
            break
        text = shorter
    if not re.fullmatch("[de]+", text):
        sys.exit(f'pytorch_step.py: model.layers = "{pattern}" is not a pattern of d and e')
    return text


def step_flops(config, layers):
    """trainer/step_flops.cpp: products of forward, twice that for backward; causal attention is half the square."""
    model, moe, training = config.model, config.model.moe, config.training
    hidden, length = model.hidden_size, training.sequence_length
    q, kv = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    forward = 2.0 * hidden * model.vocab_size
    for kind in layers:
        forward += 2 * hidden * (2 * q + 2 * kv) + 2 * q * length
        if kind == "d":
            forward += 6 * hidden * model.intermediate_size
        else:
            width = moe.num_experts_per_tok * moe.moe_intermediate_size + moe.shared_expert_intermediate_size
            forward += 6 * hidden * width + 2 * hidden * moe.num_experts
    return 3.0 * forward * training.global_batch_size * length


def learning_rate(config, step, total):
    """trainer/learning_rate.cpp; steps count from 1."""
    scheduler, peak = config.lr_scheduler, config.optimizer.learning_rate
    if step < scheduler.warmup_steps:
        return peak * step / scheduler.warmup_steps
    begin = scheduler.warmup_steps
    if scheduler.decay == "wsd":
        begin = max(begin, total - (scheduler.decay_steps or max(total // 10, 1)))
    if scheduler.decay == "constant" or step <= begin:
        return peak
    progress = 1.0 if step >= total else (step - begin) / (total - begin)
    remaining = 0.5 * (1 + math.cos(math.pi * progress)) if scheduler.decay == "cosine" else 1 - progress
    return peak * (scheduler.min_lr_ratio + (1 - scheduler.min_lr_ratio) * remaining)


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
        """layers/kernels/load_balance.h; counts [B, E]."""
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


def make_optimizer(config, model, device):
    standard = {key: value for key, value in vars(config.optimizer).items() if not isinstance(value, dict)}
    for name, group in vars(config.optimizer).items():
        own = {"weight_decay": 0.0} if name == "vectors" else {}
        if isinstance(group, dict) and any(value != {**standard, **own}.get(key) for key, value in group.items()):
            sys.exit(f"pytorch_step.py: [optimizer.{name}] differs from [optimizer], and here all are stepped alike")
    if (standard["name"], standard["state"]) != ("adamw", "float32"):
        sys.exit("pytorch_step.py: steps by adamw with float32 states only")
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": config.optimizer.weight_decay},
              {"params": others, "weight_decay": 0.0}]
    options = {"lr": config.optimizer.learning_rate, "betas": tuple(config.optimizer.betas), "eps": config.optimizer.eps}
    try:
        return torch.optim.AdamW(groups, fused=True, **options)
    except (RuntimeError, TypeError):
        if device.type != "cpu":
            raise
        return torch.optim.AdamW(groups, **options)  # PyTorch before 2.4 has the fused update on GPUs only


class Text:
    def __init__(self, config, device):
        self.device, self.length = device, config.training.sequence_length
        if not config.data.train:
            sys.exit("pytorch_step.py: data.train names no file")
        pieces = []
        for name in config.data.train:
            try:
                with open(name, "rb") as file:
                    pieces.append(file.read())
            except OSError as error:
                sys.exit(f"pytorch_step.py: data.train: {error}")
        self.bytes = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8)
        self.generator = torch.Generator().manual_seed(config.run.seed)

    def batch(self, sequences):
        """tokens and targets [B, S]"""
        starts = torch.randint(0, len(self.bytes) - self.length, (sequences,), generator=self.generator)
        text = torch.stack([self.bytes[start : start + self.length + 1] for start in starts.tolist()])
        if self.device.type == "cuda":
            text = text.pin_memory().to(self.device, non_blocking=True)
        text = text.long()
        return text[:, :-1], text[:, 1:]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("--steps", type=int, default=20, help="steps counted")
    parser.add_argument("--warmup", type=int, default=3, help="steps not counted")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="instead of run.device")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on a GPU")
    parser.add_argument("--checkpoint", action="store_true", help="keep only what enters a block, compute the rest again")
    parser.add_argument("--attention", choices=["cudnn", "flash"], help="on a GPU; default: the first that takes the model")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the CPU")
    parser.add_argument("--losses", action="store_true", help="print the loss of every step, warm-up included, to stderr")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments, overrides = parser.parse_known_args()
    return arguments, read_config(arguments.config, overrides)


def main():
    arguments, config = parse_arguments()
    device = torch.device(arguments.device or config.run.device)
    compiled = device.type == "cuda" if arguments.compile is None else arguments.compile
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.precision.compute]
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(config.run.seed)

    layers, training = parse_layers(config.model.layers), config.training
    attention_name, attention = choose_attention(config, device, dtype, arguments.attention)
    products_name, products = choose_products(config, device, dtype) if "e" in layers else (None, None)
    model = Model(config, layers, attention, products, device, dtype)
    model.checkpointed = arguments.checkpoint
    if compiled:
        compile_parts(model)
    optimizer, text = make_optimizer(config, model, device), Text(config, device)

    sequences = training.microbatch_size * config.parallelism.data_shard * config.parallelism.data_replicate
    microbatches, rest = divmod(training.global_batch_size, sequences)
    if rest:
        sys.exit(f"pytorch_step.py: {training.global_batch_size} sequences are no multiple of {sequences}")

    seconds, total = [], arguments.warmup + arguments.steps
    for step in range(1, total + 1):
        begin = time.perf_counter()
        step_loss = torch.zeros((), device=device)
        for _ in range(microbatches):
            tokens, targets = text.batch(sequences)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                loss, extra = model(tokens, targets)
            ((loss + extra) / microbatches).backward()
            step_loss += loss.detach() / microbatches
        if training.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, total)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last_loss = step_loss.item()  # waits for the device ...
        if device.type == "cuda":
            torch.cuda.synchronize()  # ... but not for the update
        if step > arguments.warmup:
            seconds.append(time.perf_counter() - begin)
        if arguments.losses:
            print(f"step {step} loss {last_loss:.4f}", file=sys.stderr, flush=True)

    median = sorted(seconds)[len(seconds) // 2]
    tokens = training.global_batch_size * training.sequence_length
    flops = step_flops(config, layers)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report = {
        "tokens_per_second": tokens / median,
        "tokens_per_second_best": tokens / min(seconds),
        "step_milliseconds": 1e3 * median,
        "gflops_per_step": flops / 1e9,
        "gflops_per_second": flops / median / 1e9,
        "peak_bytes": peak,
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": last_loss,
        "compute": config.precision.compute,
        "attention": attention_name,
        "experts": products_name,
        "compiled": compiled,
        "checkpointed": arguments.checkpoint,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }
    if device.type == "cuda":
        report["share_of_peak"] = flops / median / 1e12 / PEAK_TFLOPS
    if arguments.json:
        print(json.dumps(report))
        return
    parts = [f"attention {attention_name}", f"experts {products_name}" if products_name else "",
             "compiled" if compiled else "not compiled", "checkpointed" if arguments.checkpoint else ""]
    print(f"PyTorch {torch.__version__} on {report['device']}, {config.precision.compute}, {', '.join(filter(None, parts))}")
    print(f"{report['parameters']} parameters, loss {last_loss:.4f} after {total} steps, "
          f"{peak / 2**30:.2f} GiB at the most")
    print(f"{report['tokens_per_second']:.0f} tok/s (best {report['tokens_per_second_best']:.0f}), "
          f"{report['step_milliseconds']:.1f} ms a step, median of {len(seconds)}")
    share = f", {100 * report['share_of_peak']:.1f} % of {PEAK_TFLOPS:.0f}" if device.type == "cuda" else ""
    print(f"{flops / median / 1e12:.3f} TFLOP/s{share}")


if __name__ == "__main__":
    try:
        main()
    except torch.cuda.OutOfMemoryError as error:
        print(f"pytorch_step.py: {str(error).splitlines()[0]}", file=sys.stderr)
        print("The memory does not hold this step; try --checkpoint", file=sys.stderr)
        sys.exit(3)
