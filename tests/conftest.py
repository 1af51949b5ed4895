"""Settings of all tests."""

import os
import signal

from hypothesis import settings

# How long an example takes says nothing about what it shows, on a machine that does other work too. Where the same code
# must come to the same, as in .ci/run, the examples are the same each time; everywhere else they are new ones.
settings.register_profile("avenor", deadline=None, derandomize="AVENOR_SAME_EXAMPLES" in os.environ)
settings.load_profile("avenor")

# A shell that starts this in the background has SIGINT ignored, and nohup SIGHUP: all that is started here would have
# that from us, and ignore what tests send.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
