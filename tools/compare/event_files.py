"""Loads the event files of a run with TensorBoard's own reader and compares them with its metrics.jsonl.

  python3 tools/compare/event_files.py RUN

RUN is a run.directory. Needs the package tensorboard. The reader verifies every checksum, and reads a file up to the first that is wrong. Each
record must have the loss, norm and memory of its step; no step may stand twice after the reader has dropped those that a resumed run took again;
and the first step, those at multiples of metrics.interval and the last one must be there. Exit code 1 after a difference.
"""
import json
import pathlib
import re
import sys

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = pathlib.Path(sys.argv[1])
    lines = {line["step"]: line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    wanted = {"loss": lambda line: line["loss"], "grad_norm": lambda line: line["grad_norm"],
              "memory_gib": lambda line: line["peak_bytes"] / 2**30}
    for k in range(len(lines[min(lines)].get("mtp_losses", []))):
        wanted[f"mtp_loss/{k + 1}"] = lambda line, k=k: line["mtp_losses"][k]
    for moe in lines[min(lines)].get("moe", []):
        index, block = lines[min(lines)]["moe"].index(moe), moe["block"]
        for field in ("max_over_mean", "entropy", "auxiliary_loss", "z_loss", "dropped", "unused"):
            wanted[f"moe/block_{block}/{field}"] = lambda line, i=index, f=field: line["moe"][i][f]
    interval = int(re.search(r"^interval = (\d+)", (run / "config.toml").read_text().split("[metrics]")[1], re.M)[1])
    reported = {step for step in lines if step % interval == 0} | {min(lines), max(lines)}
    faults = [f"there is no tag {tag}" for tag in wanted if tag not in tags]
    for tag, value in wanted.items():
        scalars = events.Scalars(tag) if tag in tags else []
        steps = [scalar.step for scalar in scalars]
        if len(set(steps)) != len(steps):
            faults.append(f"{tag}: a step stands twice: {steps}")
        missing = sorted(reported - set(steps))
        if missing:
            faults.append(f"{tag}: no record of steps {missing}")
        for scalar in scalars:
            expected = numpy.float32(value(lines[scalar.step]))
            if numpy.float32(scalar.value) != expected:
                faults.append(f"{tag} of step {scalar.step}: {scalar.value}, in metrics.jsonl {expected}")
    print(f"{len(tags)} tags, {len(events.Scalars('loss'))} records of {len(lines)} steps: {len(faults)} differences")
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(1 if faults else 0)


main()
