"""Record the first minute that README.md shows as docs/first-minute.gif.

    python docs/record.py [FILE]

Type the keys below into bash in a pseudo-terminal, with the `cookiecutter` and the `python` of this
Python's folder. pyte interprets the output of the terminal, and Pillow draws it with a font of
matplotlib. These three packages are needed in addition to the tests' packages.
"""

import contextlib
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
PICTURE = TEMPLATE / "docs" / "first-minute.gif"
COLUMNS = 96
ROWS = 30
CHARACTER_WIDTH = 8  # pixels
CHARACTER_HEIGHT = 17
MARGIN = 8
FONT = ImageFont.truetype(font_manager.findfont("DejaVu Sans Mono"), 13)
BACKGROUND = "#1e2127"
FOREGROUND = "#d6d9e0"
COLORS = {
    "cyan": "#61bccd",
    "magenta": "#c68cd6",
    "green": "#8cc26e",
    "brown": "#d1aa66",
}
ESCAPE_SEQUENCE = r"\x1b\[[0-9;?]*[a-zA-Z]|\r"
QUIET_SECONDS = 0.15  # without output, the screen is complete
FRAME_SECONDS = 0.1  # with continuous output
LONGEST_SECONDS = 1.5  # a screen that doesn't change
LAST_SECONDS = 6
PATIENCE = 120  # seconds, for what the next keys wait for
CTRL_C = "\x03"

# Patterns of the output so far, and the keys that are typed when they match.
KEYS = [
    (r"\$ $", "cookiecutter cookiecutter-tf-distribute\r"),
    (r"\(TF Distribute\): $", "Digits\r"),
    (r"\(digits\): $", "\r"),
    (r"Worked example[\s\S]*\(1\): $", "\r"),
    (r"Size of[\s\S]*\(1\): $", "\r"),
    (r"Distributed training[\s\S]*\(1\): $", "\r"),
    (r"Job file[\s\S]*\(1\): $", "\r"),
    (r"\$ $", "cd digits && python train.py\r"),
    (r"epoch +12/30", CTRL_C),
    (r"\$ $", "python train.py\r"),
    (r"\$ $", "ls run\r"),
    (r"\$ $", ""),
]


class Terminal:
    """A shell in a pseudo-terminal, and pictures of its screen."""

    def __init__(self, folder):
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.frames = []  # (picture, seconds)
        self.output = ""  # since the last keys
        self.file = start_shell(folder)
        self.drawn_at = time.monotonic()

    def read_screen(self):
        """Read output until it pauses, and draw the screen."""
        while select.select([self.file], [], [], QUIET_SECONDS)[0]:
            content = os.read(self.file, 1 << 16)
            self.stream.feed(content)
            self.output += content.decode(errors="replace")
            if time.monotonic() - self.drawn_at > FRAME_SECONDS:
                break
        self.frames.append((draw(self.screen), time.monotonic() - self.drawn_at))
        self.drawn_at = time.monotonic()

    def shows(self, pattern):
        text = re.sub(ESCAPE_SEQUENCE, "", self.output)
        return re.search(pattern, text)

    def type_keys(self, keys):
        self.output = ""
        os.write(self.file, keys.encode())


def start_shell(folder):
    """Start bash in a folder with the template. Return the file of its terminal."""
    (folder / "cookiecutter-tf-distribute").symlink_to(TEMPLATE)
    config = folder / "config.yaml"
    config.write_text(f"replay_dir: {folder}/replay\ncookiecutters_dir: {folder}/templates\n")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PS1": "$ ",
        "TERM": "xterm-256color",
        "COOKIECUTTER_CONFIG": str(config),
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    child, file = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "--norc", "--noediting"], environment)
    ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    return file


def record():
    """Type the keys. Return pictures of the screen, and for how many seconds each was visible."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        terminal = Terminal(Path(folder))
        stack.callback(os.close, terminal.file)  # ends bash
        for pattern, keys in KEYS:
            terminal.read_screen()
            deadline = time.monotonic() + PATIENCE
            while not terminal.shows(pattern):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{pattern} doesn't appear in {terminal.output}")
                terminal.read_screen()
            terminal.type_keys(keys)
        return terminal.frames


def draw(screen):
    width = COLUMNS * CHARACTER_WIDTH + 2 * MARGIN
    height = ROWS * CHARACTER_HEIGHT + 2 * MARGIN
    picture = Image.new("RGB", (width, height), BACKGROUND)
    canvas = ImageDraw.Draw(picture)
    for row, line in screen.buffer.items():
        for column, cell in line.items():
            x = MARGIN + column * CHARACTER_WIDTH
            y = MARGIN + row * CHARACTER_HEIGHT
            color = COLORS.get(cell.fg, FOREGROUND)
            canvas.text((x, y), cell.data, color, FONT)
    return picture


def merge_equal(frames):
    """Merge consecutive frames with the same picture. A pause becomes shorter."""
    merged = []
    for picture, seconds in frames:
        if merged and merged[-1][0].tobytes() == picture.tobytes():
            picture, seconds_before = merged.pop()
            seconds = min(LONGEST_SECONDS, seconds_before + seconds)
        merged.append((picture, seconds))
    last_picture, _ = merged.pop()
    return [*merged, (last_picture, LAST_SECONDS)]


def main():
    path = PICTURE
    if sys.argv[1:]:
        path = Path(sys.argv[1])
    frames = merge_equal(record())
    milliseconds = [round(1000 * seconds) for _, seconds in frames]
    pictures = [picture.quantize(16, dither=Image.Dither.NONE) for picture, _ in frames]
    first, *others = pictures
    first.save(path, save_all=True, append_images=others, duration=milliseconds, loop=0)
    print(f"{path}: {len(frames)} pictures, {sum(milliseconds) / 1000:.0f} s")


if __name__ == "__main__":
    main()
