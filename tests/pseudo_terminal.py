"""Run a command in a pseudo-terminal, which Linux and macOS have."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time


class Terminal:
    """A command that runs in a pseudo-terminal, and the text that it has shown."""

    def __init__(self, command, env, cwd, columns):
        self.end, command_end = pty.openpty()
        fcntl.ioctl(command_end, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        env = {**env, "TERM": "xterm", "COLUMNS": str(columns)}
        self.process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=command_end,
            stdout=command_end,
            stderr=command_end,
            start_new_session=True,
            preexec_fn=self.take_terminal,
        )
        os.close(command_end)
        self.shown = ""
        self.read = b""

    @staticmethod
    def take_terminal():
        """Let Ctrl-C interrupt the command, even if the tests run in the background."""
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def read_until(self, *texts):
        """Read until one of the texts is shown or the command ends. Return the text read."""
        began = time.monotonic()
        start = len(self.shown)
        while not any(text in self.shown[start:] for text in texts):
            assert time.monotonic() - began < 60, self.shown
            readable, _, _ = select.select([self.end], [], [], 1)
            if not readable:
                continue
            try:
                self.read += os.read(self.end, 4096)
            except OSError:  # Linux reports the end of the command's output as an error.
                break
            text = self.read.decode("utf-8", errors="ignore")  # the last character may be partial
            self.shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text)  # colors and bold
        return self.shown[start:]

    def type(self, text):
        os.write(self.end, text.encode("utf-8"))

    def finish(self):
        """Wait for the command and return its exit code."""
        self.read_until("text\0that is never shown")
        os.close(self.end)
        return self.process.wait(timeout=60)
