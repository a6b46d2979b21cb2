"""Tables and pictures of what side_by_side.py has measured.

    python benchmarks/report.py FILE

prints the tables again from the file that `--json` has written.
"""

import itertools
import json
import statistics
import sys
from pathlib import Path

from race import is_limit, is_peer

NORMAL_QUANTILE = 1.96  # two-sided interval of 95 %
SLOWEST_BAR = 0.5  # slower contenders are not drawn
COLUMNS = (
    "",
    "seconds",
    "batches/s",
    "wall clock",
    "CPU time",
    "peak MiB",
    "rounds",
)
LIMIT = "limit, our Adam and input"


def compare(ours, theirs):
    """Return the median of the ratios theirs / ours within a round, and its 95 % interval.

    The interval is made of order statistics, so that it holds for any distribution.
    """
    pairs = zip(ours, theirs, strict=False)
    ratios = sorted(their_seconds / our_seconds for our_seconds, their_seconds in pairs)
    if not ratios:  # one of the two has failed
        return ""
    median = statistics.median(ratios)
    count = len(ratios)
    skipped = max(0, int((count - NORMAL_QUANTILE * count**0.5) / 2))
    low = ratios[skipped]
    high = ratios[count - 1 - skipped]
    return f"{median:.2f} ({low:.2f}–{high:.2f})"


def print_row(*cells):
    print("|", *[f"{cell} |".lstrip() for cell in cells], flush=True)


def print_table(title, results):
    """Print the results of a measurement as Markdown, compared with the first contender."""
    first_name, *_ = results
    reference = results[first_name]
    print(f"\n**{title}**, speed relative to {first_name}\n")
    print_row(*COLUMNS)
    print("|" + "---|" * len(COLUMNS))
    for name, result in results.items():
        if result["clock"]:
            print_row(name, *format_result(result, reference))
        else:
            print_row(name, f"fails: {result['fails']}", *[""] * (len(COLUMNS) - 2))


def format_result(result, reference):
    seconds = statistics.median(result["clock"])
    batches_per_second = result["batches"] / seconds
    return [
        f"{seconds:.2f}",
        f"{batches_per_second:.4g}",
        compare(result["clock"], reference["clock"]),
        compare(result["processor"], reference["processor"]),
        f"{result['peak']:.0f}",
        str(len(result["clock"])),
    ]


def print_summary(measurements):
    """Print the speed of train.py, divided by the speed of the fastest peer and of the limit.

    Peers with XLA are compared with train.py with XLA.
    """
    for suffix in ("", ", XLA"):
        print(f"\n**Summary{suffix}**: by wall clock, and by CPU time in brackets\n")
        print_row("", "essential ÷ fastest peer", "complete ÷ fastest peer", "essential ÷ limit")
        print("|" + "---|" * 4)
        for title, results in measurements.items():
            print_comparison(title, results, suffix)


def print_comparison(title, results, suffix):
    """Print a line of the summary, if train.py and a peer were measured with this suffix."""
    measured = {name: result for name, result in results.items() if result["clock"]}
    essential = measured.get(f"train.py{suffix}, essential")
    complete = measured.get(f"train.py{suffix}, complete")
    peers = select_peers(measured, suffix)
    if not (essential and complete and peers):
        return
    fastest = find_fastest(peers, measured)
    cells = [divide_speeds(size, measured[fastest]) for size in (essential, complete)]
    limit = None if suffix else measured.get(LIMIT)
    cells.append(divide_speeds(essential, limit) if limit else "")
    print_row(f"{title} ({fastest})", *cells)


def select_peers(names, suffix):
    """Return the peers that use XLA, for the suffix ", XLA", or those that don't, for ""."""
    return [name for name in names if is_peer(name) and name.endswith(", XLA") == bool(suffix)]


def find_fastest(names, results):
    """Return the contender with the largest ratio within a round to the first one, as a median."""
    reference = next(iter(results.values()))  # as in the tables
    return max(names, key=lambda name: compute_speed(results[name], reference))


def divide_speeds(ours, theirs):
    """Return the medians of the ratios within a round, as text."""
    return f"{compute_speed(ours, theirs):.2f} ({compute_speed(ours, theirs, 'processor'):.2f})"


def find_failures(measurements):
    """Return the contenders that failed, except those with XLA.

    XLA can't compile a step of several replicas.
    """
    failures = []
    for title, results in measurements.items():
        for name, result in results.items():
            has_failed = result["fails"] not in (None, "is slow")
            if has_failed and "XLA" not in name:
                failures.append(f"{title}: {name}")
    return failures


def plot(measurements, path):
    """Draw the speeds of each measurement, compared with the fastest peer."""
    import matplotlib.pyplot as plt

    rows = -(-len(measurements) // 2)
    figure, axes = plt.subplots(
        rows,
        2,
        figsize=(11, 3.2 * rows),
        sharex=True,
        squeeze=False,
    )
    for axis, title in itertools.zip_longest(axes.flat, measurements):
        if title is None:
            axis.set_axis_off()
        else:
            draw(axis, title, measurements[title])
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def draw(axis, title, results):
    """Draw the medians of the ratios within a round as bars.

    Contenders that failed, skipped rounds or are slow have no bar.
    """
    measured = {name: result for name, result in results.items() if result["clock"]}
    complete = {name: result for name, result in measured.items() if not result["fails"]}
    # If all peers have skipped rounds, the fastest one in the first round.
    peers = list(filter(is_peer, complete)) or list(filter(is_peer, measured))
    best = find_fastest(peers, measured)
    for name, result in reversed(complete.items()):
        speed = compute_speed(result, measured[best])
        if speed > SLOWEST_BAR:
            bar = axis.barh(name, speed, color=choose_color(name))
            axis.bar_label(bar, fmt="%.2f", padding=3, fontsize=8)
    axis.set_title(f"{title}: speed ÷ {best}'s", loc="left", fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params("y", labelsize=8)
    axis.margins(x=0.1)


def compute_speed(result, reference, clock="clock"):
    """Return the median of the ratios within a round."""
    pairs = zip(result[clock], reference[clock], strict=False)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def choose_color(name):
    if is_limit(name):
        return "lightgray"
    return "tab:gray" if is_peer(name) else "tab:orange"


def main():
    """Print all tables of a file."""
    measurements = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    print(measurements.pop("machine"))
    for title, results in measurements.items():
        print_table(title, results)
    print_summary(measurements)


if __name__ == "__main__":
    main()
