"""Settings whose fields carry everything that is known of them.

`option` defines a field with its help, limits and choices. From these follow the checks of its
value, its line in the docstring of the class, and its option on the command line.
"""

from cowclip_merlin.settings.fields import (
    Option,
    Settings,
    add_options,
    device_option,
    option,
    option_of,
    options_of,
    parse_integers,
    parse_names,
    settings_from,
    values_from,
    words_of,
)

__all__ = [
    "Option",
    "Settings",
    "add_options",
    "device_option",
    "option",
    "option_of",
    "options_of",
    "parse_integers",
    "parse_names",
    "settings_from",
    "values_from",
    "words_of",
]
