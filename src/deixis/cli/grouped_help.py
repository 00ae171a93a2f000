"""Help that lists commands in groups, each with its whole summary."""

from __future__ import annotations

from typing import Any

import typer

PHOTOS = "Your photos"
RESEARCH = "Research"
DATA = "Data"
ANNOTATION = "Annotation"
OTHERS = "Commands"
GROUPS = (PHOTOS, RESEARCH, DATA, ANNOTATION, OTHERS)
#: Commands that moved, and their new group.
MOVED = {name: f"figures {name}" for name in ("correspondences", "gallery", "map", "site", "snippets", "vocabulary")}


class GroupedHelp(typer.core.TyperGroup):
    """Lists commands under the headings of `GROUPS`, each with its whole summary. A heading is a `rich_help_panel`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        for group in GROUPS:
            listed = [
                (name, command.get_short_help_str(limit=1000))
                for name, command in commands
                if _heading(command) == group and not command.hidden
            ]
            if listed:
                with formatter.section(group):
                    formatter.write_dl(listed)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in MOVED and args[0] not in self.commands:
            ctx.fail(f"'deixis {args[0]}' is now 'deixis {MOVED[args[0]]}'.")
        return super().resolve_command(ctx, args)


def _heading(command: Any) -> str:
    panel = getattr(command, "rich_help_panel", None)
    return panel if panel in GROUPS else OTHERS
