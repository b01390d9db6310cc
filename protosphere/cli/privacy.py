"""`protosphere privacy`: a site's releases of its table, and their privacy cost."""

from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.options import end, option


def privacy(
    state: Annotated[str, option("The site's folder; default: PROTOSPHERE_HOME.", "FOLDER")] = "",
    delta: Annotated[
        float, typer.Option(help="The δ for which ε is printed.", min=1e-300, max=0.5, metavar="D")
    ] = 1e-5,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew", help="Forget the stored releases. The next run makes new ones and spends privacy budget again."
        ),
    ] = False,
) -> None:
    """Print a site's privacy ledger.

    It has one line per release and ends with the total spent. A stored release is sent again whenever the same one is
    requested, even if the rows have changed, until it is renewed. Renew on a schedule that does not depend on the rows.

    Exits 0, or 2 if the ledger cannot be read or written, or if there is nothing to renew.
    """
    from protosphere.client_app.privacy_ledger import RENEWED, Ledger, LedgerError
    from protosphere.core.home import home
    from protosphere.prototypes.accounting import epsilon_of

    ledger = Ledger((Path(state).expanduser() if state else home()) / "privacy")
    if not ledger.folder.exists():
        about = f"{ledger.folder.parent} has no release; --state names a site's own folder"
        if renew:
            end(f"there is nothing to renew: {about}.")
        typer.echo(f"{about} (deploy/supernode.sh --state)")
        return
    try:
        if renew:
            ledger.renew()
        entries = ledger.entries()
        for entry in entries:
            if RENEWED in entry:
                typer.echo(f"{entry['time']}  renewed")
                continue
            cost = f"ε = {epsilon_of(entry['rho'], delta):.3g}"
            typer.echo(f"{entry['time']}  {cost} a {entry['unit']}, encoder {entry['encoder']}, for {entry['run']}")
        spent = ledger.spent()
    except LedgerError as error:
        end(str(error))
    typer.echo(f"{ledger.folder}: spent in all: ε = {epsilon_of(spent, delta):.3g} at δ = {delta:g} (ρ = {spent:.4g})")
