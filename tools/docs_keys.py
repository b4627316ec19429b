"""The page of scenario keys, made from the schema."""

from __future__ import annotations

from allocator.scenario.describe import describe


def scenario_keys() -> str:
    """Return the table of every scenario key this version acts on."""
    lines = [
        "# Scenario keys",
        "",
        "Every key this version acts on, generated from the schema. Any number may also be written",
        "`{value:, low:, high:, kind: measured|vendor|fitted|assumed, source:}`; low and high are",
        "its 80% range. Keys of the contract that are not here are refused by name.",
        "",
        "| key | legal | default | meaning |",
        "|---|---|---|---|",
    ]
    for entry in describe():
        default = "required" if entry.required else _cell(_short(entry.default))
        lines.append(
            f"| `{entry.path}` | {_cell(entry.legal)} | {default} | {_cell(entry.description)} |"
        )
    return "\n".join(lines) + "\n"


def _short(default: object) -> str:
    if isinstance(default, dict):
        spread = ""
        if default.get("low") is not None:
            spread = f" ({default['low']:g} to {default['high']:g})"
        return f"{default['value']:g}{spread}" if "value" in default else str(default)
    return "" if default is None else str(default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
