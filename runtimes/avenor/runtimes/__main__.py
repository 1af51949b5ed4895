"""`python -m avenor.runtimes DIRECTORY READY_FD`: a runtime without the zygote, for when there is none."""

import sys

from avenor.runtimes.detach import become_runtime, reset_signals

if __name__ == "__main__":
    reset_signals()
    become_runtime(sys.argv[1], int(sys.argv[2]))
