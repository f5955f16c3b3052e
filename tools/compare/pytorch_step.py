#!/usr/bin/env python3
"""What a step of a configuration costs in PyTorch: the yardstick of tools/compare/step.sh.

Reads the TOML file that Weft reads and trains the model it describes on the text it names, as a careful user of PyTorch
would: float32 parameters under autocast, fused AdamW, fused attention, grouped products for experts, each block compiled.
One process stands for all ranks: a microbatch holds as many sequences as the data-parallel ranks take at a time together.

  tools/compare/pytorch_step.py CONFIG [--section.key=value ...]

Prints one JSON document. Exit code 3: the GPU's memory did not hold it.

The model is in pytorch_model.py. As in Weft, weight decay leaves norms alone. Windows of text are drawn at random; Weft
draws its own, hence losses agree in trend, not in digits.
"""
import argparse
import json
import os
import resource
import sys
import time

# Blocks of different sizes come and go each step; without this the largest model here dies of fragments.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
import torch.nn as nn

from pytorch_model import Model, choose_attention, choose_products, compile_parts
from run_config import learning_rate, parse_layers, read_config, step_flops


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
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on a GPU")
    parser.add_argument("--checkpoint", action="store_true", help="keep only what enters a block, compute the rest again")
    parser.add_argument("--attention", choices=["cudnn", "flash"], help="on a GPU; default: the first that takes the model")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the CPU")
    parser.add_argument("--losses", action="store_true", help="print the loss of every step, warm-up included, to stderr")
    arguments, overrides = parser.parse_known_args()
    return arguments, read_config(arguments.config, overrides)


def main():
    arguments, config = parse_arguments()
    device = torch.device(config.run.device)
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
    print(json.dumps(report))


if __name__ == "__main__":
    try:
        main()
    except torch.cuda.OutOfMemoryError as error:
        print(f"pytorch_step.py: {str(error).splitlines()[0]}", file=sys.stderr)
        print("The memory does not hold this step; try --checkpoint", file=sys.stderr)
        sys.exit(3)
