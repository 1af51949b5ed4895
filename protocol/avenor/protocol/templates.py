"""The template language of prompts (contract, part 4): the part of Go's text/template that prompts use.

`parse_template` finds what is wrong before anything runs; `Template.render` gives the prompt. Where the text comes
from, and that a prompt from the command line is no template, is for the caller.
"""

from collections.abc import Collection, Mapping

import msgspec

from avenor.protocol.template.check import find_faults
from avenor.protocol.template.eval import render_definitions
from avenor.protocol.template.nodes import Definition
from avenor.protocol.template.parser import parse_definitions
from avenor.protocol.template.problems import Fault, TemplateError, TemplateProblem, template_error
from avenor.protocol.template.values import Root, go_string

__all__ = ["Template", "TemplateError", "TemplateProblem", "parse_template"]


class Template(msgspec.Struct, frozen=True):
    """A template whose syntax and names are known to be right; `parse_template` makes it."""

    text: str
    name: str
    definitions: Mapping[str, Definition]

    def render(self, values: Mapping[str, str | int]) -> str:
        """The prompt. Bytes that are no UTF-8, as a slice may leave, become U+FFFD.

        Args:
            values: The fields of the root; at least those that the template uses.

        Raises:
            TemplateError: What only shows when it runs: a wrong kind of argument, an index out of range, a field that
                has no value, too many steps, too much output.
        """
        fields = {name: go_string(value) if isinstance(value, str) else value for name, value in values.items()}
        try:
            return render_definitions(self.definitions, self.name, Root(fields)).decode("utf-8", "replace")
        except Fault as fault:
            raise template_error(self.text, [fault]) from None


def parse_template(text: str, *, fields: Collection[str], name: str = "prompt") -> Template:
    """The template of a text.

    Args:
        text: What stands outside of `{{` and `}}` is copied.
        fields: The names that the root has, without dots.
        name: What the template itself is called, for one that calls itself.

    Raises:
        TemplateError: The first error of syntax; if there is none, every unknown field, function, template or variable
            and every call with a wrong number of arguments.
    """
    try:
        definitions = parse_definitions(text, name)
    except Fault as fault:
        raise template_error(text, [fault]) from None
    if faults := find_faults(definitions, name, fields):
        raise template_error(text, faults)
    return Template(text, name, definitions)
