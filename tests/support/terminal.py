"""A program on a terminal of its own, and what it shows there."""

from __future__ import annotations

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
from collections.abc import Callable, Sequence

ROWS, COLUMNS = 30, 100
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>78]|\r")
_PAUSE_S = 0.15
_LOCAL_FLAGS = 3


class Terminal:
    """Close it: the program is killed if it has not ended."""

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str],
        *,
        columns: int = COLUMNS,
        term: str = "xterm",
    ) -> None:
        self._master, slave = pty.openpty()
        self._width = self._columns = columns
        self._shown = b""
        self._resize()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": term, "COLORTERM": "", "PROMPT_TOOLKIT_NO_CPR": "1"},
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self._master, text.encode())

    def wait(self, found: Callable[[str], bool], timeout_s: float = 60.0) -> str:
        """Wait until what was shown since the start is as wanted, and return it.

        The program is made to draw its prompt and what is below it again and again.
        """
        deadline = time.monotonic() + timeout_s
        while not found(text := self._screen()):
            assert time.monotonic() < deadline, f"the terminal shows\n{text}"
        return text

    def shows(self, *wanted: str) -> str:
        """Wait until all of some texts were shown."""
        return self.wait(lambda text: all(each in text for each in wanted))

    def _screen(self) -> str:
        # The program draws what has changed, but all of it when the window has another width.
        self._columns = self._width + (self._columns == self._width)
        self._resize()
        os.killpg(self.process.pid, signal.SIGWINCH)
        while data := self._read():
            self._shown += data
        return _CONTROL.sub(b"", self._shown).decode("utf-8", "replace")

    def left(self, timeout_s: float = 60.0) -> tuple[int, bytes, bool]:
        """Wait until it has ended: its code, what it wrote last, whether keys are echoed again."""
        code = self.process.wait(timeout_s)
        shown = b""
        while data := self._read(ended=True):
            shown += data
        return code, shown, bool(termios.tcgetattr(self._master)[_LOCAL_FLAGS] & termios.ECHO)

    def close(self) -> None:
        """Kill what runs, and let go of the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self, *, ended: bool = False) -> bytes:
        """Return what is written before the program pauses, or what is left when it has ended."""
        if not select.select([self._master], [], [], _PAUSE_S)[0]:
            return b""
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the program has closed its end
            data = b""
        assert data or ended, "the program has ended"
        return data

    def _resize(self) -> None:
        size = struct.pack("HHHH", ROWS, self._columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
