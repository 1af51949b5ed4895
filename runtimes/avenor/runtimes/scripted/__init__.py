"""The scripted agent: an ACP agent of our own, in its own process, that plays a script and asks no model.

Start it with `python -m avenor.runtimes.scripted`. It imports nothing but the standard library, msgspec and
`avenor.protocol`, so that it starts fast and stays small.
"""
