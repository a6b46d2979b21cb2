"""Records the first minute, as README.md shows it, into docs/first-minute.gif.

    python docs/record.py

A real terminal: bash, with the `cookiecutter` and the `python` of this Python's folder, is typed
the keys below. pyte knows what a terminal does with what it is sent; Pillow draws it, with the font
that matplotlib brings along. These three are all that it needs beside what the tests do.
"""

import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pyte
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

TEMPLATE = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 96, 30
WIDTH, HEIGHT = 8, 17  # of a character, in pixels
FONT = ImageFont.truetype(font_manager.findfont("DejaVu Sans Mono"), 13)
PAPER, INK = "#1e2127", "#d6d9e0"
COLORS = {"cyan": "#61bccd", "magenta": "#c68cd6", "green": "#8cc26e", "brown": "#d1aa66"}

# What the last lines are like when the keys are typed, and the keys.
KEYS = [
    (r"\$ $", "cookiecutter cookiecutter-tf-distribute\r"),
    (r"\(TF Distribute\): $", "Digits\r"),
    (r"\(digits\): $", "\r"),
    (r"Worked example[\s\S]*\(1\): $", "\r"),
    (r"How much[\s\S]*\(1\): $", "\r"),
    (r"How several[\s\S]*\(1\): $", "\r"),
    (r"Job file[\s\S]*\(1\): $", "\r"),
    (r"\$ $", "cd digits && python train.py\r"),
    (r"epoch +12/30", "\x03"),  # Ctrl-C
    (r"\$ $", "python train.py\r"),
    (r"\$ $", "ls run\r"),
    (r"\$ $", ""),
]


def play():
    """Types the keys. Returns pictures of the screen, and how long each was seen, in seconds."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream, frames, keys = pyte.ByteStream(screen), [], list(KEYS)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "cookiecutter-tf-distribute").symlink_to(TEMPLATE)
        config = Path(folder, "config.yaml")
        config.write_text(f"replay_dir: {folder}/replay\ncookiecutters_dir: {folder}/templates\n")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {"PS1": "$ ", "TERM": "xterm-256color", "COOKIECUTTER_CONFIG": str(config)}
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(folder)
            env = {**os.environ, **env, "PATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
            os.execvpe("bash", ["bash", "--norc", "--noediting"], env)
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        heard, seen = "", time.monotonic()
        while keys:
            while select.select([terminal], [], [], 0.15)[0]:
                text = os.read(terminal, 1 << 16)
                stream.feed(text)
                heard += text.decode(errors="replace")
                if time.monotonic() - seen > 0.1:
                    break
            frames.append((draw(screen), time.monotonic() - seen))
            seen = time.monotonic()
            if re.search(keys[0][0], re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", heard)):
                heard, typed = "", keys.pop(0)[1]
                os.write(terminal, typed.encode())
        os.close(terminal)  # which ends bash
    return frames


def draw(screen):
    picture = Image.new("RGB", (COLUMNS * WIDTH + 16, ROWS * HEIGHT + 16), PAPER)
    canvas = ImageDraw.Draw(picture)
    for row, line in screen.buffer.items():
        for column, cell in line.items():
            place = 8 + column * WIDTH, 8 + row * HEIGHT
            canvas.text(place, cell.data, COLORS.get(cell.fg, INK), FONT)
    return picture


def join(frames):
    """Returns the frames with those that are alike as one, for a second and a half at most."""
    joined = []
    for picture, seconds in frames:
        if joined and joined[-1][0].tobytes() == picture.tobytes():
            joined[-1] = joined[-1][0], min(1.5, joined[-1][1] + seconds)
        else:
            joined.append((picture, seconds))
    return [*joined[:-1], (joined[-1][0], 6)]


def main():
    frames = join(play())
    pictures = [picture.quantize(16, dither=Image.Dither.NONE) for picture, _ in frames]
    milliseconds = [round(1000 * seconds) for _, seconds in frames]
    path = TEMPLATE / "docs" / "first-minute.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    print(f"{path}: {len(frames)} pictures, {sum(milliseconds) / 1000:.0f} s")


if __name__ == "__main__":
    main()
