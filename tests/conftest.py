"""Settings of all tests."""

from hypothesis import settings

# How long an example takes says nothing about what it shows, on a machine that does other work too.
settings.register_profile("avenor", deadline=None)
settings.load_profile("avenor")
