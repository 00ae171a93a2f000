"""`deixis annotate serve`: a project in the browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from deixis.cli.annotate_team import ProjectPath
from deixis.cli.options import AllowHost, Proxy

if TYPE_CHECKING:
    from deixis.annotation.assistance import ModelAssistant


def serve(
    project: ProjectPath,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 for all that can reach this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8765,
    allow_host: AllowHost = None,
    proxy: Proxy = None,
    propose_links: Annotated[
        bool, typer.Option("--propose-links", help="Propose answers to links and chains, from their words.")
    ] = False,
    propose_boxes: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Propose boxes with a trained run that localizes.", show_default=False),
    ] = None,
    features: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="STORE", help="A feature store for that run; may be repeated.", show_default="extracted and cached"
        ),
    ] = None,
) -> None:
    """Open a project to its workers in the browser. The first start prints a link for its administrator.

    Example: deixis annotate serve project.db
    """
    from deixis.annotation.accounts import Accounts
    from deixis.annotation.schema import shown
    from deixis.annotation.workbench import Workbench
    from deixis.web.annotation_app import workbench_app
    from deixis.web.security import Hosts
    from deixis.web.serving import serve as serve_app

    def ready(address: str) -> None:
        workbench.last_served = address
        public = workbench.settings.address or address
        typer.echo(f"Serving {shown(project)} at {address} (Ctrl-C ends it)")
        if public != address:
            typer.echo(f"Its public address: {public}")
        if not accounts.has_administrator():
            typer.echo(f"Become its administrator, once: {public}/join#{accounts.invite('administrator')}")
        sys.stdout.flush()

    assistant = _assistant(project, propose_links, propose_boxes, features or [])
    with Workbench(project, assistant=assistant) as workbench:
        accounts = Accounts(workbench.engine)
        public_name = urlsplit(workbench.settings.address).hostname
        names = [*(allow_host or ()), *([public_name] if public_name else [])]
        serve_app(workbench_app(workbench, hosts=Hosts(host, names)), host, port, ready, proxy or ())


def _assistant(project: str, links: bool, run: Path | None, features: list[Path]) -> ModelAssistant | None:
    """The models that propose answers, or None without any."""
    if not links and run is None:
        return None
    from deixis.annotation.assistance import ModelAssistant
    from deixis.annotation.project import project_corpus
    from deixis.annotation.workbench import Workbench
    from deixis.text.coreference import CoreferenceScorer

    scorer = CoreferenceScorer.load() if links else None
    if run is None:
        return ModelAssistant(scorer)
    import torch

    from deixis.cli.localize import run_localizer
    from deixis.cli.output import busy
    from deixis.features.store import FeatureStore

    with busy("Loading the localizer"), Workbench(project) as workbench:
        corpus = project_corpus(workbench.engine)
        localizer = run_localizer(run, corpus, [FeatureStore(path) for path in features], torch.device("cpu"))
    return ModelAssistant(scorer, localizer)
