"""`protosphere app-hash`: the digest that a site lists so that it runs only this app."""

import typer


def app_hash() -> None:
    """Print the digest of the app that sites get and run.

    A site that is started with `deploy/supernode.sh --allow-app FILE` runs the
    apps whose digests are lines of FILE, and no others. The digest changes with
    every change of the code.

    Exits 0.
    """
    from protosphere.core.text import own_version
    from protosphere.launch.flower import ROOT, digest_of

    typer.echo(f"{digest_of(ROOT)}  protosphere {own_version()}")
