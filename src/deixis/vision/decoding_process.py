"""Decoding in a process of its own, for formats whose cost cannot be known before decoding: HEIC, AVIF and RAW.

A few bytes of these can make a decoder work for minutes or take gigabytes, and a decoder that crashes takes its process
along. Here it is another process, which ends after `CPU_SECONDS` of computing where the system counts them, after
`WALL_SECONDS` everywhere, and at a limit of memory where the system has one. It is used again for the next picture.

The two processes speak through pipes: a request, what the header says, one byte to go on, the pixels.
"""

from __future__ import annotations

import atexit
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import Lock, Timer
from typing import Any, NamedTuple

from PIL import Image as Pillow

from deixis.errors import DeixisError, InputError

#: One picture may take so long. The largest that are read take about 5 s.
CPU_SECONDS, WALL_SECONDS = 20, 120
#: Memory of the process: for itself, and for each pixel that a picture may have.
OWN_BYTES, BYTES_PER_PIXEL = 512 << 20, 16
#: Pictures with more pixels are decoded one at a time, whatever the number of threads.
LARGE_PIXELS = 32_000_000

#: Bytes of the picture, the most pixels, the shorter side that is enough, limits of seconds and memory, bytes of the
#: suffix.
_REQUEST = struct.Struct(">QQQHQB")
#: Width, height and time; or the length of a message.
_ANSWER = struct.Struct(">cII19s")
#: What an answer begins with.
_PICTURE, _PROBLEM = b"P", b"!"
_GO_ON, _ENOUGH = b"\1", b"\0"


class Header(NamedTuple):
    """What the header of a picture says.

    Attributes:
        width: of the upright picture.
        height: of the upright picture.
        taken: the camera's local time (EXIF DateTimeOriginal), as in 2024-07-14T15:20:31; empty where there is none.
    """

    width: int
    height: int
    taken: str


large_lock = Lock()
_idle: list[_Decoder] = []
_idle_lock = Lock()


def decode_apart(data: bytes, name: str, max_pixels: int, at_least: int) -> Pillow.Image:
    """`deixis.vision.reading.decode_picture` in another process."""
    with _decoder_for(name) as decoder:
        header = decoder.header(data, name, max_pixels, at_least)
        with large_lock if header.width * header.height > LARGE_PIXELS else nullcontext():
            return decoder.picture()


def header_apart(data: bytes, name: str, max_pixels: int) -> Header:
    """`deixis.vision.reading.read_header` in another process."""
    with _decoder_for(name) as decoder:
        header = decoder.header(data, name, max_pixels, 0)
        decoder.enough()
        return header


@contextmanager
def _decoder_for(name: str) -> Iterator[_Decoder]:
    """A process for one picture: one that is idle, or a new one."""
    with _idle_lock:
        decoder = _idle.pop() if _idle else None
        while decoder is not None and not decoder.is_ours():
            decoder.close()
            decoder = _idle.pop() if _idle else None
    if decoder is None:
        decoder = _Decoder()
    try:
        yield decoder
    except _Problem as fault:
        raise InputError(name, str(fault)) from None
    except _Ended:
        raise InputError(name, decoder.end()) from None
    finally:
        if decoder.waits:
            with _idle_lock:
                _idle.append(decoder)
        else:
            decoder.end()


class _Problem(Exception):
    """What the process says about a picture that it could not decode."""


class _Ended(Exception):
    """The process is no more."""


class _Decoder:
    """The process, seen from the one that needs pictures."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._late = False
        #: Whether it waits for a request.
        self.waits = False
        # No module is taken from the working folder, which may be a stranger's.
        paths = os.pathsep.join(path for path in sys.path if path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from deixis.vision.decoding_process import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except OSError as fault:
            raise DeixisError(f"the process that decodes pictures cannot be started: {fault}") from None

    def is_ours(self) -> bool:
        """Whether it is there, and not that of the process that this one was forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    def header(self, data: bytes, name: str, max_pixels: int, at_least: int) -> Header:
        """Send a picture, and receive what its header says."""
        suffix = os.path.splitext(name)[1].encode(errors="replace")[:20]
        self.waits = False
        limits = CPU_SECONDS, OWN_BYTES + BYTES_PER_PIXEL * max_pixels
        with self._limited():
            self._send(_REQUEST.pack(len(data), max_pixels, at_least, *limits, len(suffix)), suffix, data)
            return self._answer()

    def enough(self) -> None:
        self._send(_ENOUGH)
        self.waits = True

    def picture(self) -> Pillow.Image:
        """The picture whose header was received."""
        with self._limited():
            self._send(_GO_ON)
            width, height, _ = self._answer()
            pixels = self._receive(3 * width * height)
        self.waits = True
        return Pillow.frombytes("RGB", (width, height), pixels)

    def end(self) -> str:
        """Kill it where it has not ended by itself; says why."""
        with suppress(subprocess.TimeoutExpired):
            # Its pipes are closed a moment before it has an exit code.
            self._process.wait(0.5)
        killed = self._late or self._process.poll() is None
        self._process.kill()
        code = self._process.wait()
        self.close()
        if killed or code in (-_signal("SIGXCPU"), -_signal("SIGKILL")):
            return "takes too long or too much memory to decode"
        return f"makes its decoder crash (exit code {code})"

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    @contextmanager
    def _limited(self) -> Iterator[None]:
        def late() -> None:
            self._late = True
            self._process.kill()

        timer = Timer(WALL_SECONDS, late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _answer(self) -> Header:
        kind, width, height, taken = _ANSWER.unpack(self._receive(_ANSWER.size))
        if kind == _PICTURE:
            return Header(width, height, taken.rstrip(b"\0").decode())
        problem = self._receive(width).decode()
        self.waits = True
        raise _Problem(problem)

    def _send(self, *parts: bytes) -> None:
        assert self._process.stdin is not None
        try:
            for part in parts:
                self._process.stdin.write(part)
            self._process.stdin.flush()
        except OSError:
            raise _Ended from None

    def _receive(self, count: int) -> bytes:
        assert self._process.stdout is not None
        received = self._process.stdout.read(count)
        if len(received) < count:
            raise _Ended
        return received


@atexit.register
def _end_all() -> None:
    for decoder in _idle:
        if decoder.is_ours():
            decoder.end()


def _signal(name: str) -> int:
    import signal

    return int(getattr(signal, name, 0))


def main() -> None:
    """The process itself: answer requests until nobody is left who sends any."""
    import signal

    from deixis.vision.reading import decode_here, header_here

    # Ctrl-C is for the parent process; this one ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, target = sys.stdin.buffer, sys.stdout.buffer

    def send(kind: bytes, header: Header, body: bytes = b"") -> None:
        target.write(_ANSWER.pack(kind, header.width, header.height, header.taken.encode()))
        target.write(body)
        target.flush()

    while len(head := source.read(_REQUEST.size)) == _REQUEST.size:
        length, max_pixels, at_least, seconds, memory, suffix = _REQUEST.unpack(head)
        name = "picture" + source.read(suffix).decode()
        data = source.read(length)
        _set_limits(seconds, memory)
        try:
            send(_PICTURE, header_here(data, name))
            if source.read(1) == _GO_ON:
                picture = decode_here(data, name, max_pixels, at_least)
                send(_PICTURE, Header(*picture.size, ""), picture.tobytes())
                del picture
        except InputError as fault:
            problem = fault.problem.encode(errors="replace")
            send(_PROBLEM, Header(len(problem), 0, ""), problem)
        del data


def _set_limits(seconds: int, memory: int) -> None:
    """For the next picture, where the system has such limits. It ends a process that passes them."""
    try:
        import resource
    except ModuleNotFoundError:
        return
    times = os.times()
    limits: dict[str, int] = {
        "RLIMIT_CPU": int(times.user + times.system) + seconds,
        "RLIMIT_DATA": memory,
        "RLIMIT_CORE": 0,
    }
    for name, value in limits.items():
        kind: Any = getattr(resource, name, None)
        if kind is not None:
            with suppress(OSError, ValueError):
                hard = resource.getrlimit(kind)[1]
                resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
