"""The two small programs that must cost nothing: compiled where there is a C compiler, scripts where there is none."""

import shutil
import subprocess
from pathlib import Path

# Says that it runs, and stays: the child that supervisord and circus start.
_CHILD_C = r"""
#include <fcntl.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int fd = open(argv[1], O_WRONLY);
    if (fd < 0 || write(fd, "x", 1) != 1) return 1;
    close(fd);
    for (;;) pause();
}
"""

# Sends back what comes, to one client after the other: what a round trip costs before anybody thinks.
_ECHO_C = r"""
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    static char data[65536];
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), client;
    strncpy(name.sun_path, argv[1], sizeof name.sun_path - 1);
    if (bind(listener, (struct sockaddr *)&name, sizeof name) || listen(listener, 8)) return 1;
    while ((client = accept(listener, 0, 0)) >= 0) {
        ssize_t size;
        while ((size = read(client, data, sizeof data)) > 0)
            if (write(client, data, size) != size) break;
        close(client);
    }
    return 0;
}
"""

_CHILD_SH = """#!/bin/sh
printf x > "$1"
exec sleep 600
"""

_ECHO_PY = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
while True:
    client, _ = listener.accept()
    while data := client.recv(65536):
        client.sendall(data)
"""


def make_child(folder: Path) -> list[str]:
    """The command of a child that writes one byte to the pipe whose path is added to it, and stays."""
    program = _compile(folder / "child", _CHILD_C)
    if program is not None:
        return [str(program)]
    script = folder / "child.sh"
    script.write_text(_CHILD_SH)
    script.chmod(0o700)
    return [str(script)]


def make_echo(folder: Path, python: str) -> tuple[str, list[str]]:
    """What the echo is written in, and its command, to which the path of its socket is added."""
    program = _compile(folder / "echo", _ECHO_C)
    if program is not None:
        return "C", [str(program)]
    script = folder / "echo.py"
    script.write_text(_ECHO_PY)
    return "Python", [python, str(script)]


def _compile(program: Path, source: str) -> Path | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    program.with_suffix(".c").write_text(source)
    subprocess.run([compiler, "-O2", "-o", str(program), str(program.with_suffix(".c"))], check=True)
    return program
