"""The configuration of a run as tools/compare/pytorch_step.py needs it, and what follows from it alone: the layers, the
work of a step, the learning rate. All as Weft has them; a file of Weft's is named where a rule must agree with it.
"""
import math
import re
import sys
from types import SimpleNamespace

try:
    import tomllib
except ImportError:  # before Python 3.11
    from pip._vendor import tomli as tomllib

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
    """trainer/costs/step_flops.cpp: products of forward, twice that for backward; causal attention is half the square."""
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
    """trainer/optimizer/learning_rate.cpp; steps count from 1."""
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
