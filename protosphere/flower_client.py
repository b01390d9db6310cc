"""The ClientApp, as pyproject.toml names it to Flower. It lies in the package, which is found before its rooms."""

from importlib import import_module

from protosphere.rooms import add_rooms

add_rooms()
app = import_module("protosphere.client_app.app").app
