"""The verbs `profiles list|show|check`: every number with its source."""

from __future__ import annotations

from typing import Annotated

import typer

from allocator.cli.console import print_json, show_tables
from allocator.cli.program import FOUND, USAGE, Json, Verbs

profiles_app = typer.Typer(
    cls=Verbs,
    help="Show GPUs, models, rates and prices with their sources.",
    rich_markup_mode=None,
)


@profiles_app.command("list")
def profiles_list(as_json: Json = False) -> None:
    """List GPUs and models."""
    from allocator.report.profiles import catalogue_content
    from allocator.scenario.profiles import load_catalogue

    catalogue = load_catalogue()
    if as_json:
        print_json(
            {
                "gpus": [catalogue.gpu(key) for key in catalogue.gpu_ids],
                "models": [catalogue.model(key) for key in catalogue.model_ids],
            }
        )
    else:
        show_tables(catalogue_content(catalogue))


@profiles_app.command("show")
def profiles_show(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="A GPU or model, or `defaults` of a scenario.")
    ],
    as_json: Json = False,
) -> None:
    """Show every number of one profile with its source, or the defaults of a scenario."""
    from allocator.report.profiles import (
        defaults_content,
        find_profile,
        profile_content,
        profile_data,
    )
    from allocator.scenario.profiles import load_catalogue

    if name == "defaults":
        from allocator.scenario.describe import defaults

        known = defaults()
        print_json(known) if as_json else show_tables(defaults_content(known))
        return
    catalogue = load_catalogue()
    profile = find_profile(catalogue, name)
    if as_json:
        print_json(profile_data(catalogue, profile))
    else:
        show_tables(profile_content(catalogue, profile))


@profiles_app.command("check")
def profiles_check(as_json: Json = False) -> None:
    """Check that every number has a kind, a source and a spread that holds it."""
    from allocator.report.profiles import check_catalogue, check_content
    from allocator.scenario.profiles import load_catalogue

    found = check_catalogue(load_catalogue())
    print_json(found) if as_json else show_tables(check_content(found))
    raise typer.Exit(USAGE if found["problems"] else FOUND)
