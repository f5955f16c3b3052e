#!/usr/bin/env python3
"""Compares a model of state spaces alone, as transformers runs it as Mamba2ForCausalLM, with weft eval.

    weft train CONFIG          layers of M alone, one group, ids of bytes
    tools/compare/state_spaces.py CHECKPOINT --text FILE [--weft build/weft]

The loss of a text of bytes, in the windows of weft eval. Needs torch, transformers and numpy. The weights are read from
the checkpoint, whatever layout wrote it. Exit code 1 where losses differ by more than 1e-5.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tomllib

import numpy
import torch
from exported_model import loss_in_windows
from transformers import Mamba2Config, Mamba2ForCausalLM

IN_PROJ = ["z_proj", "x_proj", "b_proj", "c_proj", "step_proj"]


def read_weights(folder):
    """Name -> float32 array [rows, columns], from the boxes of all ranks."""
    manifest = json.loads((folder / "manifest.json").read_text())
    weights = {}
    for tensor in manifest["tensors"]:
        if "state" in tensor:
            continue
        whole = numpy.zeros(tensor["shape"], numpy.float32)
        for box in tensor["boxes"]:
            first, last = box["rows"]
            with open(folder / manifest["files"][box["file"]]["name"], "rb") as file:
                file.seek(box["offset"])
                whole[first:last] = numpy.frombuffer(file.read(box["bytes"]), numpy.float32).reshape(last - first, -1)
        weights[tensor["name"]] = torch.from_numpy(whole)
    return weights


def as_mamba2(model, weights):
    space = model["state_space"]
    blocks = sum(name.endswith("state_space.a_log") for name in weights)
    config = Mamba2Config(
        vocab_size=model["vocab_size"], hidden_size=model["hidden_size"], num_hidden_layers=blocks,
        num_heads=space["num_heads"], head_dim=space["head_dim"], state_size=space["state_size"], n_groups=1,
        conv_kernel=space["conv_kernel"], expand=space["num_heads"] * space["head_dim"] // model["hidden_size"],
        layer_norm_epsilon=model["rms_norm_eps"], use_bias=False, use_conv_bias=True, residual_in_fp32=False,
        tie_word_embeddings=model["tie_word_embeddings"], time_step_limit=(0.0, float("inf")), chunk_size=64)
    state = {"backbone.embeddings.weight": weights["embedding.weight"],
             "backbone.norm_f.weight": weights["head.norm.weight"].flatten(),
             "lm_head.weight": weights.get("head.weight", weights["embedding.weight"])}
    for block in range(blocks):
        ours, theirs = f"blocks.{block}.state_space.", f"backbone.layers.{block}."
        channels = torch.cat([weights[ours + part + "_filter"] for part in "xbc"])
        state |= {
            theirs + "norm.weight": weights[ours + "norm.weight"].flatten(),
            theirs + "mixer.in_proj.weight": torch.cat([weights[ours + name + ".weight"] for name in IN_PROJ]),
            theirs + "mixer.conv1d.weight": channels.reshape(-1, 1, space["conv_kernel"]),
            theirs + "mixer.conv1d.bias": torch.cat([weights[ours + part + "_bias"] for part in "xbc"]).flatten(),
            theirs + "mixer.A_log": weights[ours + "a_log"].flatten(),
            theirs + "mixer.D": weights[ours + "d"].flatten(),
            theirs + "mixer.dt_bias": weights[ours + "step_bias"].flatten(),
            theirs + "mixer.norm.weight": weights[ours + "gated_norm.weight"].flatten(),
            theirs + "mixer.out_proj.weight": weights[ours + "out_proj.weight"].T.contiguous()}
    whole = Mamba2ForCausalLM(config)
    whole.load_state_dict(state)
    return whole.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--weft", default="build/weft")
    arguments = parser.parse_args()
    config = tomllib.loads((arguments.checkpoint / "config.toml").read_text())
    if set(config["model"]["layers"]) - set("M*()~0123456789 ") or config["model"]["state_space"]["n_groups"] != 1:
        sys.exit("the blocks of Mamba2ForCausalLM are M alone, and its gated norm is over one group")
    model = as_mamba2(config["model"], read_weights(arguments.checkpoint))
    command = [arguments.weft, "eval", arguments.checkpoint, "--data", arguments.text, "--json"]
    evaluated = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with torch.no_grad():
        loss, count = loss_in_windows(model, list(arguments.text.read_bytes()), config["training"]["sequence_length"])
    print(f"loss of {count} tokens: weft {evaluated['loss']:.7f} of {evaluated['tokens']}, transformers {loss:.7f}")
    return 0 if abs(loss - evaluated["loss"]) < 1e-5 and count == evaluated["tokens"] else 1


if __name__ == "__main__":
    sys.exit(main())
