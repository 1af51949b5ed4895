"""The signals that ask a program to end."""

import signal

# Of a service manager, a terminal that is typed at, and one that has gone.
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
