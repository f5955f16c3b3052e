#!/usr/bin/env python3
"""The model of configs/bench_cpu.toml in PyTorch, as its users would write it: the yardstick of tools/bench_compare.sh.

Four pre-norm blocks of causal attention and SwiGLU, AdamW, clipping by the norm; random tokens. Prints tokens per second,
median over the steps. Learned positions stand in for rotary embedding, which costs PyTorch more on a CPU.
"""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Norm(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Block(nn.Module):
    def __init__(self, hidden, heads, width):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = Norm(hidden), Norm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x, mask):
        batch, length, hidden = x.shape
        head_dim = hidden // self.heads
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(head_dim))
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(batch, length, hidden))
        normed = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    def __init__(self, layers, hidden, heads, width, vocabulary, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList([Block(hidden, heads, width) for _ in range(layers)])
        self.norm, self.head = Norm(hidden), nn.Linear(hidden, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, tokens, mask):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compute", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    batch, length, vocabulary = 8, 256, 256
    model = Model(layers=4, hidden=256, heads=4, width=1024, vocabulary=vocabulary, length=length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    seconds = []
    for step in range(arguments.warmup + arguments.steps):
        text = torch.randint(0, vocabulary, (batch, length + 1))
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.compute == "bfloat16"):
            logits = model(text[:, :-1], mask)
        loss = F.cross_entropy(logits.float().view(-1, vocabulary), text[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= arguments.warmup:
            seconds.append(time.perf_counter() - begin)
    seconds.sort()
    print(f"{batch * length / seconds[len(seconds) // 2]:.0f}")


if __name__ == "__main__":
    main()
