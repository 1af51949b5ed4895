"""Settings of all tests."""

import os

from hypothesis import settings

# How long an example takes says nothing about what it shows, on a machine that does other work too. Where the same code
# must come to the same, as in .ci/run, the examples are the same each time; everywhere else they are new ones.
settings.register_profile("avenor", deadline=None, derandomize="AVENOR_SAME_EXAMPLES" in os.environ)
settings.load_profile("avenor")
