"""`cowclip completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

from dataclasses import dataclass

from cowclip_merlin.cli.command import Command
from cowclip_merlin.settings import Settings, option

SHELLS = ("bash", "zsh", "tcsh")


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(Settings):
    """Which shell completes."""

    shell: str = option(help="the shell", flag="shell", choices=SHELLS)


def run_completion(given: CompletionOptions) -> None:
    """Print the script."""
    import shtab

    from cowclip_merlin.cli import build_parser

    print(shtab.complete(build_parser(), shell=given.shell))


COMPLETION = Command(
    help="print a script with which a shell completes commands and options",
    needs=("shtab",),
    notes=False,
    settings=CompletionOptions,
    run=run_completion,
    examples="""examples:
  cowclip completion bash > ~/.local/share/bash-completion/completions/cowclip
  cowclip completion zsh > ~/.zsh/completions/_cowclip

Needs shtab: pip install shtab. Print the script again after an update of this package.""",
)
