"""What it costs to save every 100 steps: epochs of one run, with and without, in turn.

    python benchmarks/stall.py [--width 4096] [--epochs 12]

The network is widened, so that 100 steps last a second or more and a checkpoint is some 25 MB:
of smaller ones nobody saves so often.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).resolve().parents[1]
STEPS = 400  # an epoch


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=4096, help="of the dense layer [4096]")
    parser.add_argument("--epochs", type=int, default=12, help="half of them with saves [12]")
    arguments = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(
            cookiecutter(
                str(TEMPLATE),
                no_input=True,
                output_dir=folder,
                extra_context={"script": "complete"},
            ),
            "train.py",
        )
        text = path.read_text(encoding="utf-8")
        wide = text.replace("keras.layers.Dense(64,", f"keras.layers.Dense({arguments.width},")
        assert wide != text
        path.write_text(wide, encoding="utf-8")
        epochs, saves = time_epochs(load(path), arguments.epochs, f"{folder}/run")
        [checkpoint, *_] = Path(folder, "run", "checkpoints", "last").glob("*.data*")
        size = checkpoint.stat().st_size / 2**20
    plain, saving = epochs[1::2], epochs[2::2]  # less the first, which traces
    ratios = [a / b for a, b in zip(plain, saving, strict=False)]
    print(f"a checkpoint is {size:.0f} MiB; 100 steps last {100 * statistics.median(plain):.2f} s")
    print(f"steps/s without saves: {1 / statistics.median(plain):.1f}")
    print(f"steps/s saving each 100: {1 / statistics.median(saving):.1f}")
    spread = f"{min(ratios):.3f}–{max(ratios):.3f}"
    print(f"throughput with saves ÷ without: {statistics.median(ratios):.3f} ({spread})")
    waited = statistics.median(saves)
    share = waited / (100 * statistics.median(saving))
    print(f"the loop waits {1000 * waited:.1f} ms for a save, {share:.2%} of 100 steps")


def load(path):
    spec = importlib.util.spec_from_file_location("train", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def time_epochs(script, epochs, run_dir):
    """Returns the seconds a step of each epoch, of which those of odd index are without saves
    inside, and the seconds that each call of `save` took."""
    create_datasets, train, save = script.create_datasets, script.train, script.save
    seconds, saves, started = [], [], 0.0

    def create_large_datasets():
        train_set, *others = create_datasets()
        return [train_set.repeat().take(STEPS * script.GLOBAL_BATCH_SIZE), *others]

    def timed_train(iterator, steps):  # once a loop
        nonlocal started
        step = script.state["step"]
        if step % STEPS == 0:
            script.args.checkpoint_every_steps = 10**9 if len(seconds) % 2 else 100
            wait_for(script.writing)
            started = time.perf_counter()
        values = train(iterator, steps)
        if (step + steps) % STEPS == 0:
            wait_for(script.writing)
            seconds.append((time.perf_counter() - started) / STEPS)
            print(f"{len(seconds)}: {1 / seconds[-1]:.1f} steps/s", file=sys.stderr)
        return values

    def timed_save(*arguments):
        began = time.perf_counter()
        save(*arguments)
        saves.append(time.perf_counter() - began)

    script.create_datasets, script.train = create_large_datasets, timed_train
    script.save = timed_save
    script.main(["--run-dir", run_dir, "--epochs", str(epochs)])
    return seconds, saves


def wait_for(writing):
    """Returns when a checkpoint, if there is one under way, is whole."""
    if writing:
        writing.result()


if __name__ == "__main__":
    main()
