"""Parts of the template language; `avenor.protocol.templates` is its face."""
